"""The figures of the report, in the order of the page, each from tables of the analysis."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd

from nondet.metrics.intervals import percent
from nondet.report import cells, drawn
from nondet.report.context import Context
from nondet.report.curves import MOST_CURVES, curve_figure, histogram_figure
from nondet.report.forest import cost_figure, interval_figure, kept
from nondet.report.grids import heat_figure, raster_figure
from nondet.report.panel import Panel
from nondet.report.points import gap_figure, length_figure
from nondet.report.style import told_apart

Builder = Callable[[Context], Panel]
NO_PAIR = "There is only one finished run, so there is nothing to compare."
NO_SETTINGS = "No two settings were compared with each other, only repeats of one."
NO_MARKS = "No response was marked right or wrong: the task has no marker."


def diverged_panel(context: Context) -> Panel:
    """Share of items diverged from the reference, one row a run."""
    title, name = "Items that diverge from the reference", "diverged"
    table = drawn.diverged(context)
    if table.empty:
        return Panel(name, title, "", table, words=NO_PAIR)
    rows, note = kept(table)
    notes = [
        "" if row["missing"] else f"{row['diverged']:,.0f} of {row['items']:,.0f}"
        for row in rows.to_dict("records")
    ]
    figure = interval_figure(
        rows, context.looks, "share", "share of items, 95 % interval", notes=notes
    )
    names = rows["setting"].astype(str)
    listed = "; ".join(f"{a}: {b or 'no result'}" for a, b in zip(names, notes, strict=True))
    alt = f"Share of items whose response diverges, by setting. {listed}."
    hollow = any(context.looks[str(name)].hollow for name in rows["setting"])
    about = f"{_references(context)} {'Hollow marks: invariant kernels. ' if hollow else ''}{note}"
    return Panel(name, title, alt, table, figure, note=about.strip())


def _references(context: Context) -> str:
    names = dict.fromkeys(context.labels[run] for run in context.view.references.values())
    return "Compared with " + " and ".join(names) + "."


def survival_panel(context: Context) -> Panel:
    """Kaplan-Meier curve of agreement with the reference."""
    return _curve(
        context,
        "survival",
        "Survival of agreement",
        "still the same (Kaplan–Meier)",
        "Share of responses still equal to the reference's, by token position; ends of responses "
        "count as no longer observed. Bands: 95 %, items resampled.",
    )


def incidence_panel(context: Context) -> Panel:
    """Cumulative incidence of divergence, ending identical being the competing event."""
    return _curve(
        context,
        "incidence",
        "Cumulative incidence of divergence",
        "have diverged",
        "Share of all items that have diverged by a token position; ending identical is the "
        "competing event, so a curve ends at the share that ever diverges.",
    )


def _curve(context: Context, value: str, title: str, label: str, about: str) -> Panel:
    table = drawn.curves(context, value)
    if table.empty:
        return Panel(value, title, "", table, words=NO_PAIR)
    chosen = drawn.most_diverged(table, MOST_CURVES)
    rows = table[table["setting"].isin(chosen)]
    left = table["setting"].nunique() - len(chosen)
    note = f"{about} {_references(context)}"
    if left:
        note += f" The {len(chosen)} settings that diverge most are drawn, {left} are in the CSV."
    last = drawn.last_position(context)
    at_risk = rows if value == "survival" else None
    apart = told_apart(context.looks, [str(name) for name in chosen])
    figure = curve_figure(rows, at_risk, apart, last, value=value, label=label)
    ends = rows.groupby("setting", sort=False)[value].last()
    alt = f"{title}. At the last position: " + "; ".join(
        f"{name}: {percent(share)}" for name, share in zip(map(str, ends.index), ends, strict=True)
    )
    return Panel(value, title, alt + ".", table, figure, note=note)


def histogram_panel(context: Context) -> Panel:
    """Div_Index in bins of doubling width."""
    title, name = "Where answers part", "first_divergence"
    table = drawn.histogram(context)
    if table.empty:
        words = NO_PAIR if len(context.study.complete) < 2 else NO_SETTINGS
        return Panel(name, title, "", table, words=words)
    figure = histogram_figure(table, context.looks)
    parts = [
        f"{group!s}: "
        + ", ".join(f"{r['bin']}: {r['items']}" for r in part.to_dict("records") if r["items"])
        for group, part in table.groupby("group", sort=False)
    ]
    note = (
        "Items by the first token at which the settings are not all equal (Div_Index), in bins "
        "of doubling width; never: no two settings differ."
    )
    alt = f"Histogram of the first differing token. {'; '.join(parts)}."
    return Panel(name, title, alt, table, figure, note=note)


def raster_panels(context: Context) -> list[Panel]:
    """A prefix raster for each slice."""
    panels = []
    for part in context.view.slices[:3]:
        name = "_".join(["raster", *re.findall(r"\w+", part.name)])
        title = "Prefix raster" + (f", {part.name}" if part.name else "")
        found = cells.raster(context, part.name)
        if found is None:
            words = f"{part.name + ': ' if part.name else ''}{NO_PAIR}"
            panels.append(Panel(name, title, "", pd.DataFrame(), words=words))
            continue
        figure = raster_figure(found.share_PT, found.edges, found.forks, found.items)
        count = int(found.table["position"].notna().sum())
        alt = (
            f"Items by token position, coloured by the share of runs that agree with the "
            f"reference; {count} of {len(found.items)} items fork."
        )
        note = (
            "Colour: share of the other runs still equal to the reference at that token; the "
            "tick marks the first fork; blank after the end of the reference's response. "
            f"Compared with {found.reference}." + found.note
        )
        panels.append(Panel(name, title, alt, found.table, figure, note=note))
    return panels


def heat_panel(context: Context) -> Panel:
    """Share of identical items for every pair of settings."""
    title, name = "Setting by setting", "pairs_matrix"
    labels, share_CC, table = cells.matrix(context)
    if len(labels) < 2 and table.empty:
        return Panel(name, title, "", table, words=NO_PAIR)
    figure = heat_figure(labels, share_CC)
    low = table.sort_values("share").head(1)
    alt = f"Share of items with identical responses for {len(labels)} settings."
    if len(low):
        row = low.iloc[0]
        alt += f" Lowest: {row['setting_a']} and {row['setting_b']}, {percent(row['share'])}."
    note = (
        "Percent of items with identical responses. Diagonal: repeats of the same setting, "
        "hatched where a setting was not repeated."
    )
    if table.attrs.get("left"):
        note += f" The first {len(labels)} settings are drawn, all are in the CSV."
    return Panel(name, title, alt, table, figure, note=note)


def accuracy_panel(context: Context) -> Panel:
    """Accuracy of every run with its interval and the flips against the reference."""
    title, name = "Accuracy and flips", "accuracy"
    table = drawn.accuracies(context)
    if table.empty or table["accuracy"].isna().all():
        return Panel(name, title, "", table, words=NO_MARKS)
    rows, note = kept(table)
    notes = [drawn.flip_words(row) for row in rows.to_dict("records")]
    figure = interval_figure(
        rows, context.looks, "accuracy", "accuracy, 95 % interval", bars=True, notes=notes
    )
    marked = zip(rows["setting"], rows["accuracy"].astype(float), strict=True)
    listed = "; ".join(f"{name}: {percent(share)}" for name, share in marked)
    about = (
        "At the right: items that turned right (+) and wrong (−) against the reference, p of "
        f"McNemar's exact test. {_references(context)} {note}"
    )
    return Panel(name, title, f"Accuracy by setting. {listed}.", table, figure, note=about.strip())


def length_panel(context: Context) -> Panel:
    """Shortest, mean and longest response of every item."""
    title, name = "Length spread", "lengths"
    table = drawn.lengths(context)
    if table.empty:
        return Panel(name, title, "", table, words=NO_PAIR)
    figure = length_figure(table)
    spread = int((table["longest"] > table["shortest"]).sum())
    alt = f"Response lengths by item; {spread} of {len(table)} items differ between settings."
    note = (
        "Shortest to longest response of each item over the settings, in tokens; dashes or line: "
        f"mean. {spread:,} of {len(table):,} items have responses of different lengths."
    )
    return Panel(name, title, alt, table, figure, note=note)


def gap_panel(context: Context) -> Panel:
    """Top-1 to top-2 gap at every fork against the noise before it."""
    title, name = "Gap and noise at the fork", "fork_gap"
    table = drawn.forks(context)
    if table.empty:
        nothing = not context.view.divergence.get("event", pd.Series(dtype=bool)).any()
        words = "Nothing diverged, so there is no fork to look at."
        if not nothing:
            words = "Answers part, but no log-probabilities are stored at and before the forks."
        return Panel(name, title, "", table, words=words)
    figure = gap_figure(table, context.looks)
    explained = int((table["gap"] <= 2 * table["noise"]).sum())
    events = context.view.divergence
    events = events[events["event"] & events["run_id"].isin(drawn.first_repeats(context))]
    left = max(0, len(events) - len(table))
    more = f" {left:,} more have no known gap or noise, as those at position 0." if left else ""
    note = (
        f"Each mark is a fork ({len(table):,}). In the shaded part the gap between the two best "
        "tokens is at most twice the largest logprob difference seen on the common prefix: "
        f"rounding explains the flip ({explained:,}). Marks far above it deserve a look.{more}"
    )
    alt = f"Scatter of {len(table)} forks; at {explained} the gap is within twice the noise."
    return Panel(name, title, alt, table, figure, note=note)


def cost_panel(context: Context) -> Panel:
    """Speed and memory of every run."""
    title, name = "Cost", "cost"
    table = drawn.costs(context)
    columns = {
        column: label
        for column, label in drawn.COSTS.items()
        if column in table and table[column].notna().any()
    }
    if not columns:
        words = "No speed or memory was recorded (imported runs have none)."
        return Panel(name, title, "", table, words=words)
    rows, note = kept(table)
    figure = cost_figure(rows, context.looks, columns)
    alt = "Cost by setting: " + ", ".join(columns.values()) + "."
    about = "Tokens per second of the whole run, without loading the model. " + note
    return Panel(name, title, alt, table, figure, note=about.strip())
