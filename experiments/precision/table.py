"""Div_Percent over batch sizes of each number format: the table of experiments.precision.study.

    python -m experiments.precision.table STUDY_FOLDER

Writes STUDY_FOLDER/table.csv and prints it as Markdown. One row an arm: all runs that agree in
everything but the batch size. ``batch_sizes``: those with a complete run; ``missing``: those asked
for and not complete. A row with fewer than two complete runs compares nothing.
``diverged``: items whose answers are not all the same, of ``items``, as per cent with Wilson's 95 %
interval; ``median_index``: median first differing token of those, from 0; ``bits``: items where a
token or a bit in the log-probability of an emitted token differs; ``largest_gap``: the largest
difference of such a log-probability (nats) while the tokens are the same, where all runs have one;
``as_fp32``: items whose answer at the smallest batch is that of FP32 with the same kernels. Rows
``repeat``: a setting against itself; ``without graphs``: against the same with its decode steps
started one kernel at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments import markdown
from experiments.bits import bits, first_difference, largest_gap, logprobs
from nondet.csv_files import save_csv
from nondet.metrics.intervals import wilson
from nondet.runs import Run
from nondet.study import load_study

Answers = list[list[Any]]
Arms = dict[tuple[Any, ...], list[Run]]
PARTS = {
    "none": "",
    "lm_head": ", FP32 LM head",
    "norms": ", FP32 norms and attention",
    "residual": ", FP32 residual stream",
}
COUNTS = ("items", "diverged", "bits", "as_fp32")  # whole numbers, or nothing to count


def answers(run: Run) -> Answers:
    """Tokens of every item, in task order."""
    found: Answers = run.table(["tokens"])["tokens"].to_pylist()
    return found


def arm(run: Run) -> tuple[Any, ...]:
    """What the runs of one row have in common."""
    own = run.factors
    return (own["kernels"], own["dtype"], own.get("fp32", "none"), own.get("kv_cache", "auto"))


def sizes(runs: Sequence[Run]) -> str:
    """Batch sizes as one word of the table."""
    return " ".join(str(run.factors["batch_size"]) for run in runs)


def row(kind: str, runs: Sequence[Run], lacking: Sequence[Run], fp32: Run | None) -> dict[str, Any]:
    """One row; ``runs``, complete, and ``lacking``, not complete, by batch size."""
    kernels, dtype, level, cache = arm([*runs, *lacking][0])
    found = {
        "compared": kind,
        "kernels": kernels,
        "dtype": dtype,
        "fp32_part": level,
        "kv_cache": cache,
        "batch_sizes": sizes(runs) or None,
        "missing": sizes(lacking) or None,
    }
    return {**found, **counts(runs, fp32)} if len(runs) > 1 else found


def counts(runs: Sequence[Run], fp32: Run | None) -> dict[str, Any]:
    """What is counted over two complete runs or more."""
    tokens = [answers(run) for run in runs]
    values = [logprobs(run) for run in runs]
    firsts = [first_difference(sides) for sides in zip(*tokens, strict=True)]
    moved = [first_difference(sides) for sides in zip(*map(bits, values), strict=True)]
    parted = [first for first in firsts if first is not None]
    n = len(firsts)
    share = wilson(len(parted), n)
    gaps = map(largest_gap, zip(*values, strict=True), firsts)
    same = sum(a == b for a, b in zip(tokens[0], answers(fp32), strict=True)) if fp32 else None
    return {
        "items": n,
        "diverged": len(parted),
        "div_percent": round(100 * len(parted) / n, 1),
        "low": round(100 * share.low, 1),
        "high": round(100 * share.high, 1),
        "median_index": float(np.median(parted)) if parted else None,
        "bits": sum(a is not None or b is not None for a, b in zip(firsts, moved, strict=True)),
        "largest_gap": float(f"{max(gaps, default=0.0):.3g}"),
        "as_fp32": same,
    }


def fp32_beside(runs: Sequence[Run], arms: Arms) -> Run | None:
    """The complete FP32 run with the kernels and the batch size of the first of ``runs``."""
    for run in arms.get((arm(runs[0])[0], "fp32", "none", "auto"), []) if runs else []:
        if run.status == "complete" and sizes([run]) == sizes(runs[:1]):
            return run
    return None


def controls(runs: Sequence[Run], arms: Arms) -> Iterator[tuple[str, list[Run]]]:
    """Kind and both sides of every comparison of a setting with itself."""
    for run in runs:
        for twin in arms.get(arm(run), []):
            if run.repeat and twin.factors == run.factors:
                yield "repeat", [twin, run]
            elif {**run.factors, "cuda_graph": True} == twin.factors != run.factors:
                yield "without graphs", [twin, run]


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """All arms, then the repeats; a run that is not complete is missing from its row."""
    arms: Arms = {}
    graphed = any(run.factors.get("cuda_graph") for run in runs)
    for run in sorted(runs, key=lambda run: int(run.factors["batch_size"])):
        if run.repeat == 0 and bool(run.factors.get("cuda_graph")) == graphed:
            arms.setdefault(arm(run), []).append(run)
    rows = []
    over = [("batch sizes", own) for own in arms.values() if len(own) > 1]
    for kind, own in [*over, *controls(runs, arms)]:
        complete = [run for run in own if run.status == "complete"]
        lacking = [run for run in own if run.status != "complete"]
        fp32 = fp32_beside(complete, arms) if kind == "batch sizes" else None
        rows.append(row(kind, complete, lacking, fp32))
    found = pd.DataFrame(rows)
    return found.astype({name: "Int64" for name in COUNTS if name in found})


def words(found: pd.DataFrame) -> list[str]:
    """The table as lines of Markdown, for people."""
    head = ("compared", "format", "kernels", "batch sizes", "items that part", "per cent (95 %)",
            "median first", "other log-probability", "largest difference (nats)",
            "as FP32")  # fmt: skip
    return markdown.table(head, [cells(own) for own in found.to_dict("records")]).splitlines()


def cells(own: Mapping[Any, Any]) -> list[str]:
    """One row in words."""
    kept: dict[Any, Any] = {name: None if pd.isna(value) else value for name, value in own.items()}
    cache = "" if kept["kv_cache"] == "auto" else f", {kept['kv_cache']} cache"
    lacking = f"missing: {kept['missing']}" if kept["missing"] else ""
    has = [word for word in (kept["batch_sizes"], lacking) if word]
    first = [kept["compared"], kept["dtype"] + PARTS[kept["fp32_part"]] + cache, kept["kernels"]]
    if kept.get("items") is None:
        return [*first, "; ".join(has), "not compared", "", "", "", "", ""]
    return [
        *first,
        "; ".join(has),
        f"{kept['diverged']} of {kept['items']}",
        f"{kept['div_percent']:g} ({kept['low']:g} to {kept['high']:g})",
        "" if kept["median_index"] is None else f"{kept['median_index']:g}",
        str(kept["bits"]),
        f"{kept['largest_gap']:.2g}",
        "" if kept["as_fp32"] is None else str(kept["as_fp32"]),
    ]


def main(folder: Path) -> None:
    """Write and print the table."""
    study = load_study([folder])
    found = table(study.runs)
    save_csv(found, folder / "table.csv")
    print(*words(found), sep="\n")
    for line in study.absent():
        print(line)
    for run in study.failed:
        print("failed:", *arm(run), run.factors["batch_size"], run.record["reason"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
