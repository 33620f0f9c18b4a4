"""A study's numbers arranged for reading: runs compared with a reference of their own dtype.

Another number format is another computation, so it must not count as nondeterminism of, say, the
batch size. Where the dtype varies and some dtype has several settings, each run is compared with
the first run of its dtype; otherwise with the first run of the study. Every number still comes
from ``nondet.analysis``: of the whole study, and of the part of each dtype.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pandas as pd

from nondet.analysis import Analysis, analyse
from nondet.study import Study

AGAINST = ("diverged", "div_percent", "div_low", "div_high")


@dataclass(frozen=True)
class Slice:
    """Runs compared with one reference. name: the dtype, or empty for the whole study."""

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
    slices: tuple[Slice, ...]
    summary: pd.DataFrame
    survival: pd.DataFrame
    divergence: pd.DataFrame
    references: dict[str, str]


def slice_names(study: Study) -> list[str]:
    """The dtypes to compare within, or one empty name for the whole study."""
    if "dtype" not in study.factors:
        return [""]
    settings: dict[str, set[object]] = {}
    for run in study.complete:
        key = repr(study.setting_key(run))
        settings.setdefault(str(run.factors.get("dtype")), set()).add(key)
    several = any(len(keys) > 1 for keys in settings.values())
    return list(settings) if several and len(settings) > 1 else [""]


def make_view(study: Study, seed: int = 0) -> View:
    """Analyse a study and its slices. ``seed`` is that of every resampling."""
    whole = analyse(study, seed)
    labels = dict(zip(whole.summary["run_id"], whole.summary["label"], strict=True))
    slices = []
    for name in slice_names(study):
        if not name:
            slices.append(Slice("", study, whole))
            continue
        runs = tuple(run for run in study.runs if str(run.factors.get("dtype")) == name)
        own = dataclasses.replace(study, runs=runs)
        slices.append(Slice(name, own, analyse(own, seed)))
    references = {}
    for part in slices:
        first = part.study.complete[0].id if part.study.complete else ""
        references.update({run.id: first for run in part.study.complete})
    return View(
        study,
        whole,
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
    table.insert(list(table.columns).index("diverged"), "reference", reference)
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
