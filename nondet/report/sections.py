"""What stands on the page, in its order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from nondet.report import setup, tables
from nondet.report.context import Context
from nondet.report.page import Section, panel_entry, table_entry
from nondet.report.panel import Panel

SUMMARY = "summary"
# Runs whose whole environment stands on the page; the others are in their run.json.
MOST_RUNS = 24


def short_summary(summary: pd.DataFrame) -> pd.DataFrame:
    """The columns of the summary that the page, the terminal and summary.md show."""
    columns = ["label", "items", "diverged", "div_percent", "accuracy"]
    # How many enter a share stands beside it where it is not all of them.
    for name, before in (("compared", "diverged"), ("marked", "accuracy")):
        some = summary[summary["status"] == "complete"]
        if (some[name] != some["items"]).any() and (some[name] > 0).any():
            columns.insert(columns.index(before), name)
    columns += ["mean_length", "truncated", "tokens_per_s"]
    parts = ("first_token_s", "weights_mb", "cache_mb")
    columns += [*(name for name in parts if summary[name].notna().any()), "peak_memory_mb"]
    table = summary[[*columns, "repeat_identical"]].rename(columns={"label": "setting"})
    if (summary["status"] != "complete").any():
        table = table.assign(status=summary["status"], reason=summary["reason"])
    for name in ("items", "compared", "diverged", "marked", "truncated"):
        if name not in table:
            continue
        table[name] = table[name].astype("Int64")
    return table


def for_reading(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table without the columns that only a program needs; its files hold them all."""
    if name == "answers":
        return _answers(table)
    dropped = [c for c in ("kind", "factor", "level", "n") if c in table and "group" in table]
    words = {"value": "share identical"} if name == "attribution" else {}
    return table.drop(columns=dropped).rename(columns=words)


def _answers(table: pd.DataFrame) -> pd.DataFrame:
    """One row a group, one column a metric, with the interval in the cell."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in table.to_dict("records"):
        first = {"settings": entry["settings"], "items": entry["items"]}
        row = rows.setdefault(str(entry["group"]), {"group": entry["group"], **first})
        row[str(entry["metric"])] = tables.with_interval(
            entry["value"], entry["low"], entry["high"]
        )
    return pd.DataFrame(list(rows.values()))


def build_sections(
    context: Context,
    panels: Mapping[str, Sequence[Panel]],
    named: Mapping[str, pd.DataFrame],
    viewer: Mapping[str, Any] | None,
) -> list[Section]:
    """All sections. panels: by section id. named: tables by the stem of their files."""

    def table(title: str, name: str, note: str = "") -> list[dict[str, Any]]:
        found = named.get(name)
        if found is None or found.empty:
            return []
        return [table_entry(title, for_reading(name, found), note, name)]

    def drawn(name: str) -> list[dict[str, Any]]:
        return [panel_entry(panel, context.facts) for panel in panels.get(name, ())]

    same = " with the same " + " and ".join(context.view.sliced_by)
    note = f"Diverged: from the first run{same if context.view.sliced_by else ''}."
    short = table_entry("All runs", short_summary(context.view.summary), note, SUMMARY)
    sections = [
        Section("settings", "Settings", tables=[short], panels=drawn("settings")),
        Section(
            "factors",
            "Factors",
            "Share of items that stay identical when one factor alone changes, all others held "
            "equal.",
            table("One factor at a time", "attribution"),
        ),
        Section("tokens", "Where answers part", panels=drawn("tokens")),
        Section("pairs", "Which settings agree", panels=drawn("pairs")),
        Section(
            "scores",
            "Scores and lengths",
            "Std@Acc and Avg_Std@Output_Length are sample standard deviations over settings; the "
            "binomial standard error is what independent redraws of every item would give.",
            [
                *table("Std@Acc", "std_at_acc"),
                *table("Avg_Std@Output_Length (tokens)", "avg_std_output_length"),
                *table("Agreement of answers", "answers"),
            ],
            drawn("scores"),
        ),
        _fork_section(table, drawn, viewer),
        Section("cost", "Cost", panels=drawn("cost")),
    ]
    published = table("Ours beside published", "beside_published")
    if published:
        lead = "Published values of the same task and model; settings and machines differ."
        sections.append(Section("published", "Published", lead, published))
    return [*sections, _environment(context), _files()]


def _fork_section(table: Any, drawn: Any, viewer: Mapping[str, Any] | None) -> Section:
    return Section(
        "fork",
        "At the fork",
        "Two responses to one item, side by side, with the first differing token marked and the "
        "candidates of both sides.",
        [
            *table("First divergence (Div_Index)", "div_index"),
            *table("Avg_Std@top1_prob", "avg_std_top1_prob"),
        ],
        drawn("fork"),
        viewer=dict(viewer) if viewer else None,
    )


def _environment(context: Context) -> Section:
    entries = [table_entry("Runs", setup.run_table(context))]
    differing = setup.differing(context)
    if len(differing):
        entries.append(table_entry("Differs between runs", differing))
    details = []
    runs = context.study.runs[:MOST_RUNS]
    for run in runs:
        settings = setup.setting_table(run.record)
        title = f"{context.labels[run.id]}: requested, resolved, observed, environment"
        environment = run.record.get("environment") or {}
        details.append(
            {
                "title": title,
                "table": table_entry("Factors", settings) if len(settings) else None,
                "text": json.dumps(environment, indent=1, sort_keys=True) if environment else "",
            }
        )
    left = len(context.study.runs) - len(runs)
    lead = f"{left} more runs: see their run.json." if left else ""
    return Section("environment", "Environment", lead, entries, details=details)


def _files() -> Section:
    lead = (
        "Every table is in tables/ as CSV, Markdown and LaTeX, every figure in figures/ with the "
        "CSV it was drawn from. study.json holds verdict, controls, seed, versions and run ids."
    )
    return Section("files", "Files", lead)
