"""The table of a GPU-count study: each engine, mode and batch size against its fewest GPUs.

    python -m experiments.gpucount.summarise STUDY_FOLDER

Writes STUDY_FOLDER/table.csv and table.md. ``tokens`` and ``logprobs``: items with another token,
and with another bit in any log-probability of an emitted token; ``low`` and ``high``: Wilson's 95 %
interval of the share with another token; ``first``: the earliest position with another
log-probability, from 0; ``gap``: the largest difference of log-probabilities (nats) before answers
part, where both runs have one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.bits import bits, first_difference, largest_gap, logprobs
from nondet.metrics.intervals import wilson
from nondet.runs import Run
from nondet.study import load_study

Key = tuple[str, str, int]


def compare(reference: Run, run: Run) -> dict[str, Any]:
    """One row of the table."""
    sides = [r.table(["item_id", "tokens"]).to_pydict() for r in (reference, run)]
    if sides[0]["item_id"] != sides[1]["item_id"]:
        raise ValueError(f"{run.id} has other items than {reference.id}")
    rows = [logprobs(r) for r in (reference, run)]
    tokens, firsts, gap = 0, [], 0.0
    for item in range(len(sides[0]["item_id"])):
        apart = first_difference([side["tokens"][item] for side in sides])
        moved = first_difference(bits([side[item] for side in rows]))
        tokens += apart is not None
        known = [at for at in (apart, moved) if at is not None]
        firsts += [min(known)] if known else []
        gap = max(gap, largest_gap([side[item] for side in rows], apart))
    items = len(sides[0]["item_id"])
    share = wilson(tokens, items)
    return {
        **described(run),
        "against": described(reference)["gpus"],
        "items": items,
        "tokens": tokens,
        "share": share.value,
        "low": share.low,
        "high": share.high,
        "logprobs": len(firsts),
        "first": min(firsts) if firsts else None,
        "gap": gap,
        "tokens_per_s": run.record["tokens_per_s"],
    }


def described(run: Run) -> dict[str, Any]:
    """Which run it is."""
    return {
        "engine": run.record["observed"].get("engine") or run.factors["backend"],
        "kernels": run.factors["kernels"],
        "batch_size": run.factors["batch_size"],
        "gpus": run.factors["gpus"],
        "repeat": run.repeat,
    }


def check_alike(runs: list[Run]) -> None:
    """Raises ValueError, naming the factor, where more than the GPUs and the batch size varies."""
    first: dict[tuple[Any, ...], Run] = {}
    for run in runs:
        other = first.setdefault((run.factors["backend"], run.factors["kernels"]), run)
        for name in sorted({*run.factors, *other.factors} - {"gpus", "batch_size"}):
            ours, theirs = (one.factors.get(name) for one in (run, other))
            if ours != theirs:
                raise ValueError(f"{run.id} has {name}={ours}, {other.id} {name}={theirs}")


def rows_of(runs: list[Run]) -> list[dict[str, Any]]:
    """Each group's runs against its own fewest GPUs, repeats against their own setting, and the
    batch sizes of tp_invariant against each other.

    Raises ValueError where runs of one engine and mode differ in anything else.
    """
    check_alike(runs)
    groups: dict[Key, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (int(run.factors["gpus"]), run.repeat)):
        key = (run.factors["backend"], run.factors["kernels"], run.factors["batch_size"])
        groups.setdefault(key, []).append(run)
    rows = []
    for (backend, kernels, batch), own in groups.items():
        rows += [compare(own[0], run) for run in own[1:] if not run.repeat]
        for run in own:
            if run.repeat:
                twins = [
                    r for r in own if not r.repeat and r.factors["gpus"] == run.factors["gpus"]
                ]
                rows += [compare(twin, run) for twin in twins]
        others = [key for key in groups if key[:2] == (backend, kernels) and key[2] < batch]
        if kernels == "tp_invariant" and others:
            first = groups[others[0]][0]
            rows += [{**compare(first, own[0]), "against": f"batch size {others[0][2]}"}]
    return rows


def main(folder: Path) -> None:
    """Write and print the table."""
    study = load_study([folder])
    table = pd.DataFrame(rows_of(list(study.complete)))
    if table.empty:
        sys.exit(f"{folder}: no two complete runs of one engine, mode and batch size")
    table.to_csv(folder / "table.csv", index=False)
    lines = ["| " + " | ".join(table.columns) + " |", "| --- " * len(table.columns) + "|"]
    for row in table.itertuples(index=False):
        words = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row]
        lines.append("| " + " | ".join(words) + " |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print(table.to_string(index=False))
    for run in study.failed:
        print(f"failed: {described(run)}: {run.record['reason']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
