"""Does the published ordering hold? Differences between paired items, with intervals, in words.

The paper says: BF16 answers part more than FP16 answers, these far more than FP32 answers, and
LayerCast is like FP32; smaller batches and more GPUs vary more (in Avg_Std@top1_prob). Each pair
is compared over the settings that both sides ran and over the same items, so what differs between
two rows of a table by chance of the settings does not count.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.yuan2025.claims import HOLDS, LIKE, MORE, OPEN, REVERSED, SMALLER, says
from experiments.yuan2025.numbers import SEED, Workload, value_of
from experiments.yuan2025.results import Result
from nondet.metrics.accuracy import mcnemar
from nondet.metrics.divergence import decided, div_index, unique_outputs
from nondet.metrics.intervals import LEVEL, by_item, largest_unseen, mean_over_items
from nondet.metrics.load import scan
from nondet.metrics.prefix import NEVER

DTYPE_PAIRS = (("bf16", "fp16"), ("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "layercast"))
COLUMNS = ["claim", "model", "task", "dtype", "more", "less", "metric", "settings", "items"]
COLUMNS += ["more_value", "less_value", "difference", "low", "high", "p", "says"]
Row = dict[str, Any]
# What tells settings of one side apart.
SETTING = ("dtype", "kernels", "hardware", "gpus", "batch_size", "backend", "attention_backend")
SETTING += ("chunk_tokens",)
# LayerCast may stand beside FP32 of another engine.
ENGINE = ("backend", "attention_backend", "chunk_tokens")
# Arms of greedy decoding. Repeats, and arms that vary attention or kernels on purpose, are not.
GREEDY = {"greedy", "layercast", "layercast_llama", "larger_model", "gpqa", "transformers"}


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
    engines = _engines(workload)
    for engine, (more, less) in itertools.product(engines, DTYPE_PAIRS):
        like = less == "layercast"
        for other in _layercast_engines(workload, engine) if like else [engine]:

            def keep(
                result: Result, engine: Any = engine, less: str = less, other: Any = other
            ) -> bool:
                asked = other if value_of(result, "dtype") == less else engine
                there = _default(result) and _greedy(result)
                return there and bool(value_of(result, "backend") == asked)

            a, b = _paired(workload, "dtype", more, less, keep, ENGINE if like else ())
            if len(a) > 1:
                names = [more, less]
                if other != engine or len(engines) > 1:
                    names = [f"{more} ({engine})", f"{less} ({other})"]
                claim = LIKE if like else f"{more} parts more than {less}"
                rows.append(_divergence(workload, claim, *names, a, b))
    return rows


def _layercast_engines(workload: Workload, engine: Any) -> list[Any]:
    """Where LayerCast ran: the same engine if it did there, else all others, one by one."""
    ran = [r for r in workload.results if _default(r) and _greedy(r)]
    found = [value_of(r, "backend") for r in ran if value_of(r, "dtype") == "layercast"]
    return [engine] if engine in found else list(dict.fromkeys(found))


def _kernels(workload: Workload) -> list[Row]:
    """Default kernels above invariant ones; not a claim of this paper, but its cure's rival.

    One row a format, engine and length of a step: none of them is mixed into a spread.
    """
    names = ("dtype", "backend", "chunk_tokens")
    pairs: dict[tuple[Any, ...], tuple[list[int], list[int]]] = {}
    for arm in dict.fromkeys(tuple(value_of(r, n) for n in names) for r in workload.results):

        def keep(result: Result, arm: tuple[Any, ...] = arm) -> bool:
            return not _repeat(result) and tuple(value_of(result, n) for n in names) == arm

        found = _paired(workload, "kernels", "default", "invariant", keep)
        if len(found[0]) > 1:
            pairs[arm] = found
    rows = []
    for (dtype, engine, steps), (a, b) in pairs.items():
        where = f" ({engine})" if len(_engines(workload)) > 1 else ""
        if sum(arm[:2] == (dtype, engine) for arm in pairs) > 1:
            where += f", steps of {steps} tokens"
        claim = "default kernels part more than invariant"
        row = _divergence(workload, claim, f"default{where}", f"invariant{where}", a, b)
        rows.append({**row, "dtype": dtype})
    return rows


def _levels(workload: Workload, factor: str, claim: str, *, falling: bool) -> list[Row]:
    """Avg_Std@top1_prob at neighbouring levels of a factor, over the settings both have."""
    rows = []
    engines = _engines(workload)
    for dtype in dict.fromkeys(str(value_of(r, "dtype")) for r in workload.results):
        for engine in engines:

            def keep(result: Result, dtype: str = dtype, engine: object = engine) -> bool:
                own = str(value_of(result, "dtype")) == dtype
                own = own and value_of(result, "backend") == engine
                return own and _default(result) and _greedy(result)

            found = {value_of(r, factor) for r in workload.results if keep(r)}
            levels = sorted((level for level in found if level is not None), reverse=not falling)
            for more, less in _neighbours(levels):
                a, b = _paired(workload, factor, more, less, keep)
                if len(a) > 1:
                    where = f" ({engine})" if len(engines) > 1 else ""
                    names = (f"{factor} {more}{where}", f"{factor} {less}{where}")
                    rows.append({**_top1(workload, claim, *names, a, b), "dtype": dtype})
    return rows


def _engines(workload: Workload) -> list[Any]:
    """The engines of the runs: a spread over settings never mixes two of them."""
    return list(dict.fromkeys(value_of(result, "backend") for result in workload.results))


def _neighbours(levels: Sequence[Any]) -> list[tuple[Any, Any]]:
    pairs = list(pairwise(levels))
    return pairs if len(levels) < 3 else [*pairs, (levels[0], levels[-1])]


def _greedy(result: Result) -> bool:
    return bool(GREEDY & set(result.cell.roles))


def _default(result: Result) -> bool:
    return str(value_of(result, "kernels")) == "default"


def _repeat(result: Result) -> bool:
    return result.run is not None and result.run.repeat > 0


def _paired(
    workload: Workload,
    factor: str,
    a: Any,
    b: Any,
    keep: Callable[[Result], bool],
    free: Sequence[str] = (),
) -> tuple[list[int], list[int]]:
    """Runs of both levels of a factor whose other factors agree, but for the ``free`` ones."""
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    fixed = [name for name in SETTING if name != factor and name not in free]
    for place, result in enumerate(workload.results):
        level = value_of(result, factor)
        if keep(result) and level in (a, b):
            others = " ".join(str(value_of(result, name)) for name in fixed)
            sides[0 if level == a else 1].setdefault(others, place)
    common = [key for key in sides[0] if key in sides[1]]
    return [sides[0][key] for key in common], [sides[1][key] for key in common]


def _divergence(
    workload: Workload, claim: str, more: str, less: str, a: list[int], b: list[int]
) -> Row:
    forest, item_P = workload.loaded.forest, workload.loaded.item_P
    parts, known = [], np.ones(len(item_P), dtype=bool)
    for runs in (a, b):
        position = div_index(forest, runs)
        parts.append(position != NEVER)
        known &= decided(position, unique_outputs(forest, runs))
    sides = [np.where(known, part, np.nan) for part in parts]
    row = _row(workload, claim, more, less, len(a), sides, item_P)
    only = [int((x & ~y & known).sum()) for x, y in (parts, parts[::-1])]
    row |= {"metric": "div_percent", "p": mcnemar(*only) if row["items"] else None}
    row |= _exact_where_alike(row)
    row["says"] = says(row["items"], row["low"], row["high"], row.pop("alike"))
    # Where few items part, resampling them gives too narrow an interval: the exact test decides.
    if row["says"] in (HOLDS, REVERSED) and row["p"] > 1 - LEVEL:
        row["says"] = OPEN
    for name in ("more_value", "less_value", "difference", "low", "high"):
        row[name] *= 100
    return row


def _exact_where_alike(row: Row) -> Row:
    """An exact interval where every item says the same, so that resampling sees no spread.

    At most a share ``reach`` of items may behave otherwise unseen: either way.
    """
    items, difference = int(row["items"]), row["difference"]
    if not items or not np.isnan(row["low"]):
        return {}
    reach = largest_unseen(items)
    if difference == 0:
        return {"low": -reach, "high": reach}
    bound = 1 - 2 * reach
    return {"low": bound, "high": 1.0} if difference > 0 else {"low": -1.0, "high": -bound}


def _top1(workload: Workload, claim: str, more: str, less: str, a: list[int], b: list[int]) -> Row:
    found = scan(workload.loaded, [], {"a": tuple(a), "b": tuple(b)}, sorted({*a, *b}))
    # Over the prefix that both sides share: a side that parts sooner must not lose its positions.
    sides = [found.top1[name].global_P for name in ("a", "b")]
    row = _row(workload, claim, more, less, len(a), sides, workload.loaded.item_P)
    row |= {"metric": "avg_std_top1_prob", "p": None}
    row["says"] = says(row["items"], row["low"], row["high"], row.pop("alike"))
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
        "alike": bool(found.n) and bool(np.nanmax(np.abs(a - b)) == 0),
    }
