"""A study's numbers arranged for reading: runs compared with a reference of their own kind.

Another number format, of all or of a part, or another set of kernels, is another computation: that
its answers are others must not count as nondeterminism of, say, the batch size. Where such factors
vary and some combination of them has several settings, each run is compared with the first run of
its combination; otherwise with the first run of the study. Every number still comes from
``nondet.analysis``: of the whole study, and of each such slice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from nondet.analysis import Analysis, analyse
from nondet.runs import Run
from nondet.study import Study

# The parts that backend.fp32 computes in FP32 and the type of the KV cache belong to the format.
PARTS = ("fp32", "kv_cache")
COMPUTATION = ("dtype", "kernels", *PARTS)
AGAINST = ("compared", "diverged", "div_percent", "div_low", "div_high")


@dataclass(frozen=True)
class Slice:
    """Runs compared with one reference. name: as ``bf16`` or ``bf16, invariant, fp32 lm_head``, or
    empty."""

    name: str
    study: Study
    analysis: Analysis


@dataclass(frozen=True)
class View:
    """The analysis of a study and of its slices.

    summary: that of the analysis, diverged items against the reference of the run's slice, whose
    label is in the column ``reference``. survival and divergence: those of all slices, with the
    study's own labels; divergence has the columns slice and reference_label too.
    """

    study: Study
    analysis: Analysis
    sliced_by: tuple[str, ...]
    slices: tuple[Slice, ...]
    summary: pd.DataFrame
    survival: pd.DataFrame
    divergence: pd.DataFrame
    references: dict[str, str]


def slice_factors(study: Study) -> tuple[str, ...]:
    """The factors that tell slices apart; empty when the study is one slice."""
    names = tuple(name for name in COMPUTATION if name in study.factors)
    settings: dict[str, set[str]] = {}
    for run in study.complete:
        key = repr(study.setting_key(run))
        settings.setdefault(slice_name(run, names), set()).add(key)
    several = any(len(keys) > 1 for keys in settings.values())
    return names if several and len(settings) > 1 else ()


def slice_name(run: Run, names: Sequence[str]) -> str:
    """The slice of a run: its values of the factors ``names``, those of parts where given."""
    words = [str(run.factors.get(name)) for name in names if name not in PARTS]
    given = [(name, run.factors.get(name)) for name in names if name in PARTS]
    words += [f"{name} {value}" for name, value in given if value is not None]
    return ", ".join(words) or ("plain" if names else "")


def make_view(study: Study, seed: int = 0) -> View:
    """Analyse a study and its slices. ``seed`` is that of every resampling."""
    whole = analyse(study, seed)
    labels = dict(zip(whole.summary["run_id"], whole.summary["label"], strict=True))
    names = slice_factors(study)
    slices = [Slice("", study, whole)]
    if names:
        slices = []
        for name in dict.fromkeys(slice_name(run, names) for run in study.complete):
            runs = tuple(run for run in study.runs if slice_name(run, names) == name)
            own = dataclasses.replace(study, runs=runs)
            slices.append(Slice(name, own, analyse(own, seed)))
    references = {}
    for part in slices:
        first = part.study.complete[0].id if part.study.complete else ""
        references.update({run.id: first for run in part.study.complete})
    return View(
        study,
        whole,
        names,
        tuple(slices),
        _summary(whole.summary, slices, references, labels),
        _joined(slices, "survival", labels, references),
        _joined(slices, "divergence", labels, references),
        references,
    )


def _summary(
    summary: pd.DataFrame,
    slices: list[Slice],
    references: dict[str, str],
    labels: dict[str, str],
) -> pd.DataFrame:
    parts = [part.analysis.summary[["run_id", *AGAINST]] for part in slices]
    own = pd.concat(parts).set_index("run_id") if parts else pd.DataFrame(columns=[*AGAINST])
    table = summary.copy()
    for name in AGAINST:
        table[name] = table["run_id"].map(own[name])
    reference = table["run_id"].map(lambda run: labels.get(references.get(run, ""), ""))
    table.insert(list(table.columns).index("compared"), "reference", reference)
    return table


def _joined(
    slices: list[Slice], name: str, labels: dict[str, str], references: dict[str, str]
) -> pd.DataFrame:
    parts = []
    for part in slices:
        table: pd.DataFrame = getattr(part.analysis, name)
        if len(table):
            ids = table["run_id"].astype(str)
            parts.append(
                table.assign(
                    run_id=ids,
                    label=ids.map(labels),
                    slice=part.name,
                    reference_label=ids.map(lambda run: labels[references[run]]),
                )
            )
    if not parts:
        return pd.DataFrame(columns=["run_id", "label", "slice", "reference_label"])
    return pd.concat(parts, ignore_index=True)
