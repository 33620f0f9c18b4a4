"""What is drawn: tables of the analysis, selected and put in order. No new statistic is made."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from nondet.metrics.responses import read_outcomes
from nondet.report.context import Context

COSTS = {
    "tokens_per_s": "tokens/s",
    "peak_memory_mb": "peak memory (MB)",
    "peak_device_memory_mb": "peak GPU memory (MB)",
}
# More groups than these are drawn as one.
MOST_GROUPS = 4


def diverged(context: Context) -> pd.DataFrame:
    """Runs that were compared and runs that are missing: setting, items, diverged, share, ...

    items: those that could be told from the reference or are the same (``compared``).
    """
    table = context.view.summary
    references = set(context.view.references.values())
    table = table[~table["run_id"].isin(references)]
    if table["diverged"].isna().all():
        table = table.head(0)
    return pd.DataFrame(
        {
            "setting": table["label"],
            "reference": table["reference"],
            "items": table["compared"],
            "diverged": table["diverged"],
            "share": table["div_percent"] / 100,
            "low": table["div_low"] / 100,
            "high": table["div_high"] / 100,
            "missing": table["status"].where(table["status"] != "complete", ""),
        }
    ).reset_index(drop=True)


def curves(context: Context, value: str) -> pd.DataFrame:
    """Survival or incidence of each setting's first repeat, with its start at position 0."""
    table = context.view.survival
    if table.empty:
        return pd.DataFrame(columns=["setting", "position", value, "low", "high", "at_risk"])
    first = first_repeats(context)
    # Where there are repeats only, they are what is drawn.
    if table["run_id"].isin(first).any():
        table = table[table["run_id"].isin(first)]
    bands = ["low", "high"] if value == "survival" else ["incidence_low", "incidence_high"]
    parts = []
    for label, part in table.groupby("label", sort=False):
        start = 1.0 if value == "survival" else 0.0
        # Until the first change the band is that of the first row.
        same = part[value].iloc[0] == start
        low, high = (part[name].iloc[0] if same else start for name in bands)
        # A step at position 0 is drawn at 0, so the start lies just before it.
        parts.append(
            pd.DataFrame(
                {
                    "setting": label,
                    "position": [-1, *part["t"]],
                    value: [start, *part[value]],
                    "low": [low, *part[bands[0]]],
                    "high": [high, *part[bands[1]]],
                    "at_risk": [part["at_risk"].iloc[0], *part["at_risk"]],
                    "events": [0, *part["events"]],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def first_repeats(context: Context) -> set[str]:
    """Run ids of the first finished run of each setting."""
    seen: dict[str, str] = {}
    for run in context.study.complete:
        seen.setdefault(repr(context.study.setting_key(run)), run.id)
    return set(seen.values())


def most_diverged(table: pd.DataFrame, count: int) -> list[str]:
    """Names of the ``count`` settings with the most events, in the table's order."""
    names = list(dict.fromkeys(table["setting"]))
    if len(names) <= count:
        return names
    events = table.groupby("setting")["events"].sum()
    chosen = set(sorted(names, key=lambda name: -events[name])[:count])
    return [name for name in names if name in chosen]


def last_position(context: Context) -> int:
    """The last token position of any reference response, or of a fork just behind its end."""
    table = context.view.divergence
    forks = table["position"].max()
    last = int(table["len_ref"].max()) - 1
    return max(1, last, last if pd.isna(forks) else int(forks))


def bin_edges(last: int) -> list[int]:
    """Bins of doubling width: 0, 1, 2 to 3, 4 to 7, ... up to the one that holds ``last``."""
    edges = [0, 1]
    while edges[-1] <= last:
        edges.append(edges[-1] * 2)
    return edges


def histogram(context: Context) -> pd.DataFrame:
    """Items by the bin of the Div_Index of their slice, without those cut too early to tell."""
    columns = ["group", "bin", "first", "items"]
    found: dict[str, pd.Series[Any]] = {}
    decided: dict[str, int] = {}
    for part in context.view.slices:
        items = part.analysis.div_index_items
        if "all settings" in items:
            found[part.name or "all settings"] = items["all settings"]
            index = part.analysis.div_index
            counts = index[index["group"] == "all settings"]["items"]
            decided[part.name or "all settings"] = int(counts.iloc[0])
    if not found:
        return pd.DataFrame(columns=columns)
    largest = max((at.max() for at in found.values() if at.notna().any()), default=0)
    edges = bin_edges(int(largest))
    rows: list[dict[str, Any]] = []
    for group, position in found.items():
        for start, stop in pairwise(edges):
            label = str(start) if stop - start == 1 else f"{start}–{stop - 1}"
            count = int(position.between(start, stop - 1).sum())
            rows.append({"group": group, "bin": label, "first": start, "items": count})
        never = decided[group] - int(position.notna().sum())
        rows.append({"group": group, "bin": "never", "first": None, "items": never})
    return pd.DataFrame(rows, columns=columns)


def accuracies(context: Context) -> pd.DataFrame:
    """Accuracy of every finished run with the flips against the reference of its slice.

    items: those with a verdict.
    """
    table = context.view.summary
    table = table[table["status"] == "complete"]
    flips = context.view.analysis.flips
    known = {(row["run_a"], row["run_b"]): row for row in flips.to_dict("records")}
    rows = []
    for row in table.to_dict("records"):
        reference = context.view.references.get(row["run_id"], "")
        pair = known.get((reference, row["run_id"]), {})
        rows.append(
            {
                "setting": row["label"],
                "items": row["marked"],
                "accuracy": row["accuracy"],
                "low": row["acc_low"],
                "high": row["acc_high"],
                "reference": row["reference"],
                "is_reference": reference == row["run_id"],
                "turned_wrong": pair.get("only_a"),
                "turned_right": pair.get("only_b"),
                "p": pair.get("p"),
            }
        )
    columns = ["setting", "items", "accuracy", "low", "high", "reference", "is_reference"]
    return pd.DataFrame(rows, columns=[*columns, "turned_wrong", "turned_right", "p"])


def p_words(p: float) -> str:
    """A p value with two digits, never as 0."""
    return f"p {p:.2f}" if p >= 0.005 else f"p {p:.1g}"


def flip_words(row: Mapping[Any, Any]) -> str:
    """Flips of one run in short: +2 −1, p 1.00."""
    if row["is_reference"]:
        return "reference"
    if row["turned_wrong"] is None or pd.isna(row["turned_wrong"]):
        return ""
    right, wrong = int(row["turned_right"]), int(row["turned_wrong"])
    return "no flips" if right == wrong == 0 else f"+{right} −{wrong}, {p_words(row['p'])}"


def lengths(context: Context) -> pd.DataFrame:
    """Shortest, mean and longest response of every item, shortest mean first."""
    table = context.view.divergence
    if table.empty:
        return pd.DataFrame(columns=["item_id", "shortest", "mean", "longest"])
    item = table["item"].astype(str)
    runs = table["len_run"].groupby(item)
    references = table["len_ref"].groupby([item, table["slice"]]).first().groupby(level=0)
    count = runs.count() + references.count()
    found = pd.DataFrame(
        {
            "shortest": np.minimum(runs.min(), references.min()),
            "mean": (runs.sum() + references.sum()) / count,
            "longest": np.maximum(runs.max(), references.max()),
        }
    )
    return found.sort_values("mean", kind="stable").reset_index(names="item_id")


def forks(context: Context) -> pd.DataFrame:
    """Every fork with a known gap and noise: setting, group, item_id, position, gap and noise in
    nats. Without log-probabilities at common positions, as at position 0, no noise is known.
    """
    table = context.view.divergence
    names = ["setting", "group", "item_id", "position", "gap", "noise"]
    if table.empty:
        return pd.DataFrame(columns=names)
    known = table["gap_logprob"].notna() & table["dlogprob_largest"].notna()
    table = table[table["event"] & known]
    first = table["run_id"].isin(first_repeats(context))
    table = table[first] if first.any() else table
    group = table["slice"]
    if not (group != "").any():
        few = table["label"].nunique() <= MOST_GROUPS
        group = table["label"] if few else pd.Series("all settings", index=table.index)
    found = pd.DataFrame(
        {
            "setting": table["label"],
            "group": group,
            "item_id": table["item"].astype(str),
            "position": table["position"],
            "gap": table["gap_logprob"].abs(),
            "noise": table["dlogprob_largest"],
        }
    )
    return found.reset_index(drop=True)


def costs(context: Context) -> pd.DataFrame:
    """Speed and memory of every run, failed ones without numbers."""
    table = context.view.summary
    columns = [name for name in COSTS if name in table]
    numbers = table[columns].apply(pd.to_numeric, errors="coerce")
    found: pd.DataFrame = pd.concat([table["label"].rename("setting"), numbers], axis=1)
    return found


def item_order(context: Context) -> list[str]:
    """All item ids, those that fork earliest within a slice first."""
    table = context.view.divergence
    if table.empty:
        run = context.study.complete[0]
        return list(read_outcomes(run, np.zeros(len(run.item_ids), dtype=np.int64)).keys)
    never = np.iinfo(np.int64).max
    position = table["position"].astype("Int64").fillna(never)
    first = position.groupby(table["item"].astype(str), sort=False).min()
    return [str(item) for item in first.sort_values(kind="stable").index]
