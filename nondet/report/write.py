"""Writing a report: tables, figures, page and study.json, from run folders alone."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import nondet
from nondet.csv_files import save_csv
from nondet.report import drawn, panels, tables
from nondet.report.context import Context, hardware, make_context, software
from nondet.report.page import page
from nondet.report.panel import Panel, save
from nondet.report.published import beside_published
from nondet.report.sections import SUMMARY, build_sections, short_summary
from nondet.report.style import house
from nondet.report.view import View, make_view
from nondet.report.viewer import decoder, viewer_data
from nondet.runs import write_json
from nondet.study import load_study

REPORT_VERSION = 1


@dataclass(frozen=True)
class ReportResult:
    """What a report came to. paths: every file written; page: its index.html."""

    verdict: str
    reasons: list[str]
    page: Path
    paths: list[Path]
    summary: pd.DataFrame


def write_report(folders: Sequence[Path], out: Path, seed: int = 0) -> ReportResult:
    """Analyse the runs in ``folders`` and write the report into ``out``.

    Args:
        folders: study folders, folders of runs or run folders; several are merged by run id.
        out: the report's folder; files of an earlier report are written over.
        seed: of every resampling.

    Raises:
        StudyError: no run in a folder, or runs that must not be compared.
    """
    view = make_view(load_study(folders), seed)
    context = make_context(view)
    out.mkdir(parents=True, exist_ok=True)
    with house():
        grouped = _panels(context)
        drawn_panels = [panel for group in grouped.values() for panel in group]
        paths = [path for panel in drawn_panels for path in save(panel, out / "figures")]
        named = _tables(view)
        for name, table in named.items():
            paths += tables.save(table, out / "tables", name)
        viewer = _viewer(context)
        sections = build_sections(context, grouped, named, viewer)
        html = page(context, sections, viewer, _footer(view))
    index = out / "index.html"
    index.write_text(html, encoding="utf-8")
    save_csv(named[SUMMARY], out / "summary.csv")
    save_csv(view.analysis.pairs, out / "pairs.csv")
    (out / "summary.md").write_text(_summary_text(view), encoding="utf-8")
    write_json(out / "study.json", study_record(view, seed))
    own = [out / name for name in ("summary.csv", "pairs.csv", "summary.md", "study.json")]
    analysis = view.analysis
    return ReportResult(
        analysis.verdict, analysis.reasons, index, [index, *own, *paths], view.summary
    )


def study_panels(folders: Sequence[Path], seed: int = 0) -> dict[str, Panel]:
    """Every figure of the report by its name, for notebooks; nothing is written.

    Raises StudyError as ``write_report`` does.
    """
    context = make_context(make_view(load_study(folders), seed))
    with house():
        return {panel.name: panel for group in _panels(context).values() for panel in group}


def _panels(context: Context) -> dict[str, list[Panel]]:
    return {
        "settings": [panels.diverged_panel(context)],
        "tokens": [
            panels.survival_panel(context),
            panels.incidence_panel(context),
            panels.histogram_panel(context),
            *panels.raster_panels(context),
        ],
        "pairs": [panels.heat_panel(context)],
        "scores": [panels.accuracy_panel(context), panels.length_panel(context)],
        "fork": [panels.gap_panel(context)],
        "cost": [panels.cost_panel(context)],
    }


def _tables(view: View) -> dict[str, pd.DataFrame]:
    """All tables by the stem of their files."""
    named = dict(view.analysis.tables())
    named.update({SUMMARY: view.summary, "survival": view.survival, "divergence": view.divergence})
    named["beside_published"] = beside_published(view)
    return {name: table for name, table in named.items() if len(table.columns)}


def _viewer(context: Context) -> dict[str, Any] | None:
    if not context.study.complete:
        return None
    order = drawn.item_order(context)
    labels = [context.labels[run.id] for run in context.study.complete]
    return viewer_data(context.study, order, labels, decoder(context.study))


def study_record(view: View, seed: int) -> dict[str, Any]:
    """What the report's study.json holds."""
    analysis, study = view.analysis, view.study
    names = ("numpy", "pandas", "scipy", "matplotlib")
    return {
        "report_version": REPORT_VERSION,
        "name": analysis.name,
        "verdict": analysis.verdict,
        "reasons": analysis.reasons,
        "notes": analysis.notes,
        "controls": analysis.to_dict()["controls"],
        "seed": seed,
        "reference": analysis.reference,
        "references": view.references,
        "factors": list(study.factors),
        "runs": [run.id for run in study.runs],
        "complete": [run.id for run in study.complete],
        "hardware": hardware(study.complete),
        "versions": {
            "nondet": nondet.__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in names},
            "generation": software(study.complete),
        },
    }


def _summary_text(view: View) -> str:
    analysis = view.analysis
    sentences = "\n".join(f"- {sentence}" for sentence in [*analysis.reasons, *analysis.notes])
    table = tables.markdown(short_summary(view.summary))
    return f"# {analysis.name}: {analysis.verdict}\n\n{sentences}\n\n{table}"


def _footer(view: View) -> str:
    return (
        f"nondet {nondet.__version__}, report version {REPORT_VERSION}, seed "
        f"{view.analysis.seed}. Positions count tokens from 0; log-probabilities are natural "
        "logarithms; intervals are 95 %."
    )
