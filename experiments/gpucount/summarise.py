"""The table of a GPU-count study: each engine, mode and batch size against its fewest GPUs.

    python -m experiments.gpucount.summarise STUDY_FOLDER

Writes STUDY_FOLDER/table.csv and table.md. ``tokens`` and ``logprobs``: items with another token,
and with another bit in any log-probability of an emitted token; ``low`` and ``high``: Wilson's 95 %
interval of the share with another token; ``first``: the earliest position with another
log-probability, from 0; ``gap``: the largest difference of log-probabilities before answers part.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nondet.metrics.intervals import wilson
from nondet.runs import Run
from nondet.study import load_study

Key = tuple[str, str, int]


def compare(reference: Run, run: Run) -> dict[str, Any]:
    """One row of the table."""
    sides = [r.table(["item_id", "tokens", "logprobs"]).to_pydict() for r in (reference, run)]
    if sides[0]["item_id"] != sides[1]["item_id"]:
        raise ValueError(f"{run.id} has other items than {reference.id}")
    tokens, firsts, gap = 0, [], 0.0
    for position in range(len(sides[0]["item_id"])):
        a, b = (np.asarray(side["tokens"][position]) for side in sides)
        x, y = (np.asarray(side["logprobs"][position], np.float32) for side in sides)
        short = min(len(a), len(b))
        apart = np.flatnonzero(a[:short] != b[:short])
        parted = len(a) != len(b) or len(apart) > 0
        tokens += parted
        bits = np.flatnonzero(x[:short].view(np.int32) != y[:short].view(np.int32))
        if parted or len(bits):
            firsts.append(int(min([short, *bits[:1], *apart[:1]])))
        before = int(apart[0]) if len(apart) else short
        gap = max(gap, float(np.abs(x[:before] - y[:before]).max(initial=0.0)))
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


def rows_of(runs: list[Run]) -> list[dict[str, Any]]:
    """Each group's runs against its own fewest GPUs, repeats against their own setting, and the
    batch sizes of tp_invariant against each other."""
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
