"""Does the published ordering hold? Differences between paired items, with intervals, in words.

The paper says: BF16 answers part more than FP16 answers, these far more than FP32 answers, and
LayerCast is like FP32; smaller batches and more GPUs vary more (in Avg_Std@top1_prob). Each pair
is compared over the settings that both sides ran and over the same items, so what differs between
two rows of a table by chance of the settings does not count.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.yuan2025.numbers import SEED, Workload, value_of
from experiments.yuan2025.results import Result
from nondet.metrics.accuracy import mcnemar
from nondet.metrics.divergence import div_index
from nondet.metrics.intervals import (
    Estimate,
    by_item,
    largest_unseen,
    mean_over_items,
    wilson,
)
from nondet.metrics.load import scan
from nondet.metrics.prefix import NEVER

HOLDS, REVERSED, OPEN, SAME = "holds", "reversed", "not decided", "no difference seen"
SMALLER, MORE = "smaller batches vary more", "more GPUs vary more"
# What the paper claims; the verdict rests on these.
CLAIMS = ("bf16 parts more than fp16", "fp16 parts more than fp32", SMALLER, MORE)
DTYPE_PAIRS = (("bf16", "fp16"), ("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "layercast"))
COLUMNS = ["claim", "model", "task", "dtype", "more", "less", "metric", "settings", "items"]
COLUMNS += ["more_value", "less_value", "difference", "low", "high", "p", "says"]
Row = dict[str, Any]
# What tells settings of one side apart.
SETTING = ("dtype", "kernels", "hardware", "gpus", "batch_size", "attention_backend")


def ordering(workloads: Iterable[Workload]) -> pd.DataFrame:
    """One row a claim, model, task and pair that can be compared."""
    rows: list[Row] = []
    for workload in workloads:
        if workload.samples == 1:
            rows += _dtypes(workload) + _kernels(workload)
            rows += _levels(workload, "batch_size", SMALLER, falling=True)
            rows += _levels(workload, "gpus", MORE, falling=False)
    return pd.DataFrame(rows, columns=COLUMNS)


def _dtypes(workload: Workload) -> list[Row]:
    """BF16 above FP16 above FP32, and FP32 like LayerCast, in the share of items that part."""
    rows = []
    for more, less in DTYPE_PAIRS:
        a, b = _paired(workload, "dtype", more, less, lambda r: _default(r) and _greedy(r))
        claim = f"{more} parts more than {less}"
        if less == "layercast":
            claim = "layercast is like fp32"
        if len(a) > 1:
            rows.append(_divergence(workload, claim, more, less, a, b))
    return rows


def _kernels(workload: Workload) -> list[Row]:
    """Default kernels above invariant ones; not a claim of this paper, but its cure's rival."""
    rows = []
    for dtype in dict.fromkeys(value_of(r, "dtype") for r in workload.results):

        def keep(result: Result, dtype: object = dtype) -> bool:
            return value_of(result, "dtype") == dtype and not _repeat(result)

        a, b = _paired(workload, "kernels", "default", "invariant", keep)
        if len(a) > 1:
            claim = "default kernels part more than invariant"
            row = _divergence(workload, claim, "default", "invariant", a, b)
            rows.append({**row, "dtype": dtype})
    return rows


def _levels(workload: Workload, factor: str, claim: str, *, falling: bool) -> list[Row]:
    """Avg_Std@top1_prob at neighbouring levels of a factor, over the settings both have."""
    rows = []
    for dtype in dict.fromkeys(str(value_of(r, "dtype")) for r in workload.results):

        def keep(result: Result, dtype: str = dtype) -> bool:
            return str(value_of(result, "dtype")) == dtype and _default(result) and _greedy(result)

        found = {value_of(r, factor) for r in workload.results if keep(r)}
        levels = sorted((level for level in found if level is not None), reverse=not falling)
        for more, less in _neighbours(levels):
            a, b = _paired(workload, factor, more, less, keep)
            if len(a) > 1:
                names = (f"{factor} {more}", f"{factor} {less}")
                rows.append({**_top1(workload, claim, *names, a, b), "dtype": dtype})
    return rows


def _neighbours(levels: Sequence[Any]) -> list[tuple[Any, Any]]:
    pairs = list(pairwise(levels))
    return pairs if len(levels) < 3 else [*pairs, (levels[0], levels[-1])]


def _greedy(result: Result) -> bool:
    return "greedy" in result.cell.roles or "layercast" in result.cell.roles


def _default(result: Result) -> bool:
    return str(value_of(result, "kernels")) == "default"


def _repeat(result: Result) -> bool:
    return result.run is not None and result.run.repeat > 0


def _paired(
    workload: Workload, factor: str, a: Any, b: Any, keep: Callable[[Result], bool]
) -> tuple[list[int], list[int]]:
    """Runs of both levels of a factor whose other factors agree, in one order."""
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for place, result in enumerate(workload.results):
        level = value_of(result, factor)
        if keep(result) and level in (a, b):
            others = [str(value_of(result, name)) for name in SETTING if name != factor]
            sides[0 if level == a else 1].setdefault(" ".join(others), place)
    common = [key for key in sides[0] if key in sides[1]]
    return [sides[0][key] for key in common], [sides[1][key] for key in common]


def _divergence(
    workload: Workload, claim: str, more: str, less: str, a: list[int], b: list[int]
) -> Row:
    forest, item_P = workload.loaded.forest, workload.loaded.item_P
    parts = [div_index(forest, runs) != NEVER for runs in (a, b)]
    row = _row(workload, claim, more, less, len(a), [part.astype(float) for part in parts], item_P)
    only = [int((x & ~y).sum()) for x, y in (parts, parts[::-1])]
    row |= {"metric": "div_percent", "p": mcnemar(*only)}
    row |= _exact_where_alike(row)
    for name in ("more_value", "less_value", "difference", "low", "high"):
        row[name] *= 100
    return row


def _exact_where_alike(row: Row) -> Row:
    """An exact interval where every item says the same, so that resampling sees no spread."""
    items, difference = int(row["items"]), row["difference"]
    if not items or row["low"] != row["high"]:
        return {}
    if difference == 0:
        reach = largest_unseen(items)
        return {"low": -reach, "high": reach}
    bound = wilson(items, items).low
    return {"low": bound, "high": 1.0} if difference > 0 else {"low": -1.0, "high": -bound}


def _top1(workload: Workload, claim: str, more: str, less: str, a: list[int], b: list[int]) -> Row:
    found = scan(workload.loaded, [], {"a": tuple(a), "b": tuple(b)}, sorted({*a, *b}))
    # Over the prefix that both sides share: a side that parts sooner must not lose its positions.
    sides = [found.top1[name].global_P for name in ("a", "b")]
    row = _row(workload, claim, more, less, len(a), sides, workload.loaded.item_P)
    row |= {"metric": "avg_std_top1_prob", "p": None}
    for name in ("more_value", "less_value", "difference", "low", "high"):
        row[name] *= 1e4
    return row


def _row(
    workload: Workload,
    claim: str,
    more: str,
    less: str,
    settings: int,
    sides: Sequence[NDArray[np.float64]],
    item_P: NDArray[np.int64],
) -> Row:
    known = ~np.isnan(sides[0]) & ~np.isnan(sides[1])
    a, b = (by_item(np.where(known, side, np.nan), item_P) for side in sides)
    salt = f"{claim} {workload.name} {more} {less}"
    found = mean_over_items(a - b, np.random.default_rng([SEED, zlib.crc32(salt.encode())]))
    return {
        "claim": claim,
        "model": workload.model,
        "task": workload.name,
        "dtype": "",
        "more": more,
        "less": less,
        "settings": settings,
        "items": found.n,
        "more_value": float(np.nanmean(a)) if found.n else np.nan,
        "less_value": float(np.nanmean(b)) if found.n else np.nan,
        "difference": found.value,
        "low": found.low,
        "high": found.high,
        "says": says(found, bool(found.n) and bool(np.nanmax(np.abs(a - b)) == 0)),
    }


def says(difference: Estimate, nothing: bool) -> str:
    """A verdict on ``more - less`` from its interval; ``nothing``: no item differs."""
    if not difference.n or np.isnan(difference.low):
        return OPEN
    if nothing:
        return SAME
    if difference.low > 0:
        return HOLDS
    return REVERSED if difference.high < 0 else OPEN


def sentences(table: pd.DataFrame) -> list[str]:
    """The table in words, one sentence a claim."""
    found = []
    for claim, part in table.groupby("claim", sort=False):
        counts = part["says"].value_counts()
        named = [
            f"{word} in {counts[word]}" for word in (HOLDS, REVERSED, OPEN, SAME) if word in counts
        ]
        words = f"{claim}: {', '.join(named)} of {len(part)} comparisons{_largest(part)}"
        if claim == "layercast is like fp32":
            bound = 100 * largest_unseen(int(part["items"].min()))
            words = words.replace(HOLDS, "FP32 parts more").replace(
                REVERSED, "layercast parts more"
            )
            words += f"; with so many items a share below {bound:.0f} % may go unseen"
        for name in ("bf16", "fp16", "fp32"):
            words = words.replace(name, name.upper())
        found.append(words[0].upper() + words[1:] + ".")
    left = [claim for claim in CLAIMS if claim not in set(table["claim"])]
    if left:
        named = ", ".join(left)
        for name in ("bf16", "fp16", "fp32"):
            named = named.replace(name, name.upper())
        found.append(f"Not compared, since fewer than two settings finished on a side: {named}.")
    return found


def _largest(part: pd.DataFrame) -> str:
    """The largest difference of a claim, with its interval; empty where none is known."""
    known = part[part["difference"].notna()]
    if known.empty:
        return ""
    row = known.iloc[int(known["difference"].abs().to_numpy().argmax())]
    unit = "points" if row["metric"] == "div_percent" else "x 1e-4"
    where = f"{row['task']}, {row['dtype']}" if row["dtype"] else str(row["task"])
    return (
        f"; the largest difference is {row['difference']:.3g} {unit} "
        f"({row['low']:.3g} to {row['high']:.3g}, {row['items']} items of {where})"
    )


def verdict(table: pd.DataFrame) -> str:
    """HOLDS where every claim was compared and held everywhere; DOES NOT HOLD where one is
    reversed somewhere; else NOT DECIDED."""
    claims = table[table["claim"].isin(CLAIMS)]
    if (claims["says"] == REVERSED).any():
        return "DOES NOT HOLD"
    all_there = set(claims["claim"]) == set(CLAIMS)
    return "HOLDS" if all_there and (claims["says"] == HOLDS).all() else "NOT DECIDED"
