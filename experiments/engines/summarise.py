"""The table of a study over engines: each engine and mode against its own smallest batch.

    python -m experiments.engines.summarise STUDY_FOLDER

Writes STUDY_FOLDER/table.csv and prints it. ``diverged``: items with another token; ``logprobs``:
items with another bit in any log-probability of an emitted token; ``first``: the earliest such
position, counted from 0; ``at_start``: items where it is the first token, that is, where prefill
differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.bits import bits, first_difference, logprobs
from nondet.runs import Run
from nondet.study import load_study


def compare(reference: Run, run: Run) -> dict[str, Any]:
    """One row of the table."""
    sides = [r.table(["tokens"])["tokens"].to_pylist() for r in (reference, run)]
    tokens = [a != b for a, b in zip(*sides, strict=True)]
    views = [bits(logprobs(r)) for r in (reference, run)]
    firsts = [first_difference(pair) for pair in zip(*views, strict=True)]
    found = [first for first in firsts if first is not None]
    return {
        "engine": run.record["observed"].get("engine") or run.factors["backend"],
        "kernels": run.factors["kernels"],
        "batch_size": run.factors["batch_size"],
        "repeat": run.repeat,
        "against": f"{reference.factors['batch_size']}.{reference.repeat}",
        "items": len(tokens),
        "diverged": sum(tokens),
        "logprobs": len(found),
        "first": min(found) if found else None,
        "at_start": found.count(0),
    }


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Within each engine and mode: all against the smallest batch, repeats against their own."""
    groups: dict[tuple[Any, Any], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.factors["backend"], run.factors["kernels"]), []).append(run)
    rows = []
    for own in groups.values():
        own.sort(key=lambda run: (run.factors["batch_size"], run.repeat))
        rows += [compare(own[0], run) for run in own[1:]]
        for run in own:
            if run.repeat:  # those of the smallest batch are there already
                same = [r for r in own[1:] if r.repeat == 0 and r.factors == run.factors]
                rows += [compare(twin, run) for twin in same]
    return rows


def main(folder: Path) -> None:
    """Write and print the table."""
    rows = rows_of(load_study([folder]).complete)
    if not rows:
        sys.exit(f"{folder}: no two complete runs of one engine and mode, nothing to compare")
    table = pd.DataFrame(rows).astype({"first": "Int64"})
    table.to_csv(folder / "table.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
