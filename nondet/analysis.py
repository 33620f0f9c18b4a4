"""The analysis of a study: from run folders to tables and a verdict.

Everything here can be computed again from the stored runs. Shares of divergence named
``div_percent`` are in percent; every other share and accuracy runs from 0 to 1. Positions count
tokens from 0; log-probabilities are natural logs; lengths count the end token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nondet.csv_files import save_csv
from nondet.metrics import run_tables, setting_tables
from nondet.metrics.divergence import against
from nondet.metrics.evidence import controls_table, evidence_of
from nondet.metrics.groups import first_repeats, groups_of
from nondet.metrics.load import Loaded, gaps, load, scan
from nondet.metrics.scan import Pair, Scan
from nondet.metrics.survival import RESAMPLES
from nondet.metrics.verdict import INCONCLUSIVE, decide
from nondet.runs import Run, write_json
from nondet.study import Study

# With more runs than this, log-probabilities are compared only with the reference and between
# repeats: the number of pairs grows with the square of the runs.
PAIR_LIMIT = 48
# Below this many items the bootstrap of a skewed mean is known to fall short.
FEW_ITEMS = 50


@dataclass(frozen=True)
class Analysis:
    """Tables and scalars of a study. Tables of a study without complete runs are empty.

    summary: one row a run. pairs: one row a pair of complete runs. divergence: one row a run and
    item, against the reference. survival: curves against the reference. attribution: one row a
    factor. std_at_acc, avg_std_output_length, div_index, avg_std_top1_prob, answers: one row a
    group of settings (answers: and metric). div_index_items: one row an item. flips: one row a
    pair. controls: one row a pair of repeats, and what else was checked.
    """

    name: str
    seed: int | None
    reference: str | None
    factors: tuple[str, ...]
    verdict: str
    reasons: list[str]
    notes: list[str]
    summary: pd.DataFrame
    pairs: pd.DataFrame = field(default_factory=pd.DataFrame)
    divergence: pd.DataFrame = field(default_factory=pd.DataFrame)
    survival: pd.DataFrame = field(default_factory=pd.DataFrame)
    attribution: pd.DataFrame = field(default_factory=pd.DataFrame)
    std_at_acc: pd.DataFrame = field(default_factory=pd.DataFrame)
    avg_std_output_length: pd.DataFrame = field(default_factory=pd.DataFrame)
    div_index: pd.DataFrame = field(default_factory=pd.DataFrame)
    div_index_items: pd.DataFrame = field(default_factory=pd.DataFrame)
    avg_std_top1_prob: pd.DataFrame = field(default_factory=pd.DataFrame)
    answers: pd.DataFrame = field(default_factory=pd.DataFrame)
    flips: pd.DataFrame = field(default_factory=pd.DataFrame)
    controls: pd.DataFrame = field(default_factory=pd.DataFrame)

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables by name."""
        return {name: part for name, part in vars(self).items() if isinstance(part, pd.DataFrame)}

    def to_dict(self, *, items: bool = False) -> dict[str, Any]:
        """JSON values, NaN as null; tables as lists of rows. ``items`` adds those by item."""
        large = ("divergence", "survival", "div_index_items")
        plain: dict[str, Any] = {
            "name": self.name,
            "seed": self.seed,
            "reference": self.reference,
            "factors": list(self.factors),
            "verdict": self.verdict,
            "reasons": self.reasons,
            "notes": self.notes,
        }
        for name, table in self.tables().items():
            if items or name not in large:
                plain[name] = json.loads(table.to_json(orient="records", double_precision=15))
        return plain

    def write(self, folder: Path) -> None:
        """Write every table as CSV, and analysis.json with scalars and the small tables."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in self.tables().items():
            save_csv(table, folder / f"{name}.csv")
        write_json(folder / "analysis.json", self.to_dict())


def analyse(
    study: Study,
    rng: np.random.Generator | int | None = None,
    *,
    resamples: int = RESAMPLES,
    pair_limit: int = PAIR_LIMIT,
) -> Analysis:
    """All numbers of a study.

    Args:
        study: loaded runs; only complete ones enter, the others are listed.
        rng: generator or seed of every resampling; the study's own seed when None.
        resamples: of the survival bands.
        pair_limit: up to how many runs log-probabilities are compared pair by pair.

    Raises:
        StudyError: the runs do not answer the same items.
    """
    seed = study.seed if rng is None else rng
    generator = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
    shown = None if isinstance(seed, np.random.Generator) else int(seed)
    if not study.complete:
        return _nothing(study, shown)
    loaded = load(study.complete)
    first = against(loaded.forest, 0)
    groups = groups_of(study)
    pairs = _logprob_pairs(study, pair_limit)
    members = {group.name: group.runs for group in groups}
    scanned = scan(loaded, pairs, members, first_repeats(study))
    labels = run_tables.run_labels(study)
    draws = generator.spawn(5)
    pair_rows = run_tables.pairs_table(study, loaded, scanned)
    verdict, reasons = decide(evidence_of(study, loaded, pair_rows))
    return Analysis(
        name=study.name,
        seed=shown,
        reference=study.complete[0].id,
        factors=study.factors,
        verdict=verdict,
        reasons=reasons,
        notes=[*study.notes, *_notes(study, loaded, scanned, pair_limit)],
        summary=run_tables.summary_table(study, loaded, first, pair_rows),
        pairs=pair_rows,
        divergence=run_tables.divergence_table(loaded, labels, first, gaps(loaded, first), scanned),
        survival=run_tables.survival_table(loaded, labels, first, draws[0], resamples),
        attribution=setting_tables.attribution_table(study, loaded, draws[1]),
        std_at_acc=setting_tables.accuracy_table(loaded, groups),
        avg_std_output_length=setting_tables.length_table(loaded, groups, draws[2]),
        div_index=setting_tables.div_index_table(loaded, groups, draws[3]),
        div_index_items=setting_tables.div_index_items(loaded, groups),
        avg_std_top1_prob=setting_tables.top1_table(loaded, groups, scanned, draws[4]),
        answers=setting_tables.answers_table(loaded, groups),
        flips=run_tables.flips_table(study, loaded, pairs),
        controls=controls_table(study, pair_rows),
    )


def _nothing(study: Study, seed: int | None) -> Analysis:
    reasons = ["No run completed: there is nothing to compare."]
    lost, asked = len(study.failed) + study.missing, len(study.runs) + study.missing
    if lost:
        reasons.append(f"{lost} of {asked} runs are missing.")
    summary = run_tables.summary_table(study, None, None)
    notes = [*study.notes, *study.absent()]
    return Analysis(study.name, seed, None, study.factors, INCONCLUSIVE, reasons, notes, summary)


def _logprob_pairs(study: Study, limit: int) -> list[Pair]:
    runs = study.complete
    everyone = [(a, b) for a in range(len(runs)) for b in range(a + 1, len(runs))]
    if len(runs) <= limit:
        return everyone
    keys = [study.setting_key(run) for run in runs]
    return [(a, b) for a, b in everyone if a == 0 or keys[a] == keys[b]]


def _notes(study: Study, loaded: Loaded, scanned: Scan, limit: int) -> list[str]:
    notes = [_said(run) for run in loaded.runs if run.record.get("notes")]
    notes += [f"Run {run.id}: {words}." for run in loaded.runs for words in _left_out(run)]
    if len(loaded.runs) > limit:
        notes.append(
            f"{len(loaded.runs)} runs: log-probabilities and answers are compared with the "
            "reference and between repeats only."
        )
    if not any(found.n for found in scanned.pairs.values()) and scanned.pairs:
        notes.append("No log-probabilities are stored at common positions.")
    if len(loaded.runs) > 1 and loaded.items < FEW_ITEMS:
        notes.append(
            f"{loaded.items} items: 95 % intervals of means of skewed values, such as lengths, "
            "cover about 92 % with so few."
        )
    if loaded.runs[0].factors.get("temperature"):
        notes.append(
            "Responses were sampled: Avg_Std@top1_prob is of the emitted tokens, which need not be "
            "the most likely ones, and a gap at a fork need not be that of the two that parted."
        )
    notes += study.absent()
    notes += [
        f"{run_tables.run_labels(study)[run.id]}: {run.status}, {run.record.get('reason')}."
        for run in study.failed
    ]
    return notes


def _left_out(run: Run) -> list[str]:
    """What a run's invariant kernels did not cover."""
    left = run.record.get("observed", {}).get("invariant", {}).get("uncovered", [])
    return [f"kernels={run.factors['kernels']} left out {name}" for name in left]


def _said(run: Run) -> str:
    """What the engine said of single responses of a run, by its first words."""
    item, words = run.record["notes"]["first"][0]
    count = run.record["notes"]["count"]
    which = f"{count} responses, the first of them" if count > 1 else "a response,"
    return f"Run {run.id}: the engine had a word on {which} {item}: {words}."
