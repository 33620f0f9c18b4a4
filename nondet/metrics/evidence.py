"""What a verdict rests on, and the controls, from the runs of a study and its table of pairs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from nondet.metrics import run_tables
from nondet.metrics.divergence import against
from nondet.metrics.load import Loaded
from nondet.metrics.verdict import Evidence
from nondet.study import Study


def evidence_of(study: Study, loaded: Loaded, pairs: pd.DataFrame) -> Evidence:
    """What the verdict on loaded runs rests on; ``pairs`` as ``pairs_table`` gives them."""

    def of_kind(kind: str, what: str = "diverged", of: str = "items") -> list[tuple[int, int, str]]:
        rows = pairs[pairs["kind"] == kind]
        labels = rows["label_a"] + " and " + rows["label_b"]
        return list(zip(rows[what].astype(int), rows[of].astype(int), labels, strict=True))

    noise = pairs["max_abs_dlogprob"].dropna()
    first = against(loaded.forest, 0)
    decided_P = (first.identical | first.diverged).all(axis=1)
    open_ = pairs["items"] - pairs["identical"] - pairs["diverged"]
    with_reference = pairs["run_a"] == loaded.runs[0].id
    return Evidence(
        runs=len(loaded.runs),
        failed=len(study.failed) + study.missing,
        items=loaded.items - len(set(loaded.item_P[~decided_P].tolist())),
        tokens=int(loaded.outcomes[0].lengths_P.sum()),
        repeat_pairs=of_kind("repeat"),
        setting_pairs=of_kind("setting"),
        noise=float(noise.max()) if len(noise) else math.nan,
        errors=sum(outcome.errors for outcome in loaded.outcomes),
        undecided=int(open_.sum()),
        repeats_undecided=int(open_[pairs["kind"] == "repeat"].sum()),
        logprobs_compared=int(pairs["logprobs_compared"][with_reference].sum()),
        logprobs_common=int(first.prefix[:, 1:].sum()),
        repeat_logprobs=of_kind("repeat", "logprobs_differ", "logprobs_compared"),
        repeats_common=_common(loaded, pairs[pairs["kind"] == "repeat"]),
        samples=len(loaded.item_P) // max(loaded.items, 1) or 1,
    )


def _common(loaded: Loaded, pairs: pd.DataFrame) -> int:
    """Tokens that the runs of each pair have in common before they part, over all pairs."""
    place = {run.id: at for at, run in enumerate(loaded.runs)}
    ends = zip(pairs["run_a"].map(place), pairs["run_b"].map(place), strict=True)
    return sum(int(loaded.forest.prefix_with(a)[:, b].sum()) for a, b in ends)


def controls_table(study: Study, pairs: pd.DataFrame) -> pd.DataFrame:
    """What was checked before any setting is compared: repeats, and runs that are missing."""
    rows: list[dict[str, Any]] = []
    for pair in pairs[pairs["kind"] == "repeat"].to_dict("records"):
        rows.append(
            {
                "control": "repeat",
                "what": f"{pair['label_a']} and {pair['label_b']}",
                "items": pair["items"],
                "diverged": pair["diverged"],
                "logprobs_differ": pair["logprobs_differ"],
                "passed": pair["identical"] == pair["items"] and not pair["logprobs_differ"],
            }
        )
    for run in study.failed:
        what = f"{run_tables.run_labels(study)[run.id]}: {run.record.get('reason')}"
        rows.append({"control": "run complete", "what": what, "passed": False})
    names = ["control", "what", "items", "diverged", "logprobs_differ", "passed"]
    return pd.DataFrame(rows, columns=names)
