"""Div_Percent over batch sizes of each number format: the table of experiments.precision.study.

    python -m experiments.precision.table STUDY_FOLDER

Writes STUDY_FOLDER/table.csv. One row an arm: all runs that agree in everything but the batch size.
``diverged``: items whose answers are not all the same, of ``items``, as per cent with Wilson's 95 %
interval; ``median_index``: median first differing token of those, from 0; ``bits``: items where a
token or the log-probability of an emitted token differs; ``as_fp32``: items whose answer at the
smallest batch is that of FP32 with the same kernels. Rows ``repeat``: a setting against itself;
``without graphs``: against the same with its decode steps started one kernel at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nondet.metrics.intervals import wilson
from nondet.runs import Run
from nondet.study import load_study

Answers = list[list[Any]]


def answers(run: Run, column: str = "tokens") -> Answers:
    """Tokens or log-probabilities of every item, in task order."""
    found: Answers = run.table([column])[column].to_pylist()
    return found


def first_difference(sides: Sequence[Sequence[Any]]) -> int | None:
    """The first position where not all are the same; a prefix differs at its end."""
    for position, values in enumerate(zip_longest(*sides)):
        if len(set(values)) > 1:
            return position
    return None


def arm(run: Run) -> tuple[Any, ...]:
    """What the runs of one row have in common."""
    own = run.factors
    return (own["kernels"], own["dtype"], own.get("fp32", "none"), own.get("kv_cache", "auto"))


def row(kind: str, runs: Sequence[Run], fp32: Run | None) -> dict[str, Any]:
    """One row; ``runs`` by batch size."""
    tokens = [answers(run) for run in runs]
    firsts = [first_difference(sides) for sides in zip(*tokens, strict=True)]
    logprobs = [
        first_difference(sides)
        for sides in zip(*(answers(run, "logprobs") for run in runs), strict=True)
    ]
    found = [first for first in firsts if first is not None]
    n = len(firsts)
    share = wilson(len(found), n)
    kernels, dtype, level, cache = arm(runs[0])
    same = sum(a == b for a, b in zip(tokens[0], answers(fp32), strict=True)) if fp32 else None
    return {
        "compared": kind,
        "kernels": kernels,
        "dtype": dtype,
        "fp32_part": level,
        "kv_cache": cache,
        "batch_sizes": " ".join(str(run.factors["batch_size"]) for run in runs),
        "items": n,
        "diverged": len(found),
        "div_percent": round(100 * len(found) / n, 1),
        "low": round(100 * share.low, 1),
        "high": round(100 * share.high, 1),
        "median_index": float(np.median(found)) if found else None,
        "bits": sum(a is not None or b is not None for a, b in zip(firsts, logprobs, strict=True)),
        "as_fp32": same,
    }


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """All arms with two batch sizes or more, then the repeats."""
    arms: dict[tuple[Any, ...], list[Run]] = {}
    graphed = any(run.factors.get("cuda_graph") for run in runs)
    for run in sorted(runs, key=lambda run: int(run.factors["batch_size"])):
        if run.repeat == 0 and bool(run.factors.get("cuda_graph")) == graphed:
            arms.setdefault(arm(run), []).append(run)
    rows = []
    for key, own in arms.items():
        full = arms.get((key[0], "fp32", "none", "auto"))
        if len(own) > 1:
            rows.append(row("batch sizes", own, full[0] if full else None))
    for run in runs:
        for twin in arms.get(arm(run), []):
            if run.repeat and twin.factors == run.factors:
                rows.append(row("repeat", [twin, run], None))
            elif {**run.factors, "cuda_graph": True} == twin.factors != run.factors:
                rows.append(row("without graphs", [twin, run], None))
    return pd.DataFrame(rows)


def main(folder: Path) -> None:
    """Write and print the table."""
    study = load_study([folder])
    found = table(study.complete)
    found.to_csv(folder / "table.csv", index=False)
    print(found.to_string(index=False))
    for run in study.failed:
        print("failed:", *arm(run), run.factors["batch_size"], run.record["reason"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
