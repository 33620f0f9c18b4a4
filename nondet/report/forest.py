"""Settings as rows: a share or a score with its interval, and the cost panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nondet.report.style import COLUMN, FAINT, INK, MUTED, Look, canvas, wrap

# More rows than these make a figure nobody reads; all of them are in its CSV.
MOST_ROWS = 36
ROW = 0.235


def height_of(table: pd.DataFrame) -> float:
    """Height in inches of a figure with one row a setting; long names take two lines."""
    double = any("\n" in wrap(str(name)) for name in table["setting"])
    return 0.75 + (1.4 if double else 1) * ROW * max(len(table), 2)


def kept(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows that fit, and a note where some do not."""
    if len(table) <= MOST_ROWS:
        return table, ""
    return table.head(MOST_ROWS), f"The first {MOST_ROWS} of {len(table)} settings are drawn."


def draw_intervals(
    ax: Axes,
    table: pd.DataFrame,
    looks: Mapping[str, Look],
    value: str,
    label: str,
    *,
    bars: bool = False,
    notes: Sequence[str] = (),
) -> Axes:
    """One row a setting: a marker (or a bar) at ``value`` and a line from ``low`` to ``high``.

    ``table`` has the columns setting, ``value``, low, high; missing values get the word "none".
    ``notes`` are printed at the right end of the rows.
    """
    for row, entry in enumerate(table.to_dict("records")):
        look, at = looks[entry["setting"]], entry[value]
        if pd.isna(at):
            ax.text(
                0,
                row,
                f"  {entry.get('missing') or 'none'}",
                va="center",
                color=MUTED,
                fontsize=7.5,
            )
            continue
        if bars:
            _bar(ax, row, at, look)
        if not (pd.isna(entry["low"]) or pd.isna(entry["high"])):
            colour = INK if bars else look.colour
            ax.plot([entry["low"], entry["high"]], [row, row], color=colour, lw=1.3)
        if not bars:
            ax.plot(at, row, look.marker, color=look.colour, mfc=look.face, mew=1.3, ms=5.5)
    _rows(ax, table, notes)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    ax.set_xlabel(label)
    return ax


def _bar(ax: Axes, row: int, at: float, look: Look) -> None:
    """A bar that is told apart in black and white too: pale, with its outline and hatch."""
    ax.barh(row, at, 0.62, color="none" if look.hollow else look.colour, alpha=0.32, lw=0)
    ax.barh(row, at, 0.62, fill=False, edgecolor=look.colour, hatch=look.hatch, lw=0.9)


def _rows(ax: Axes, table: pd.DataFrame, notes: Sequence[str]) -> None:
    names = [wrap(str(name)) for name in table["setting"]]
    ax.set_yticks(range(len(names)), names, linespacing=1.0)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=FAINT, lw=0.6)
    for row, note in enumerate(notes):
        ax.annotate(
            note,
            (1, row),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            annotation_clip=False,
        )


def interval_figure(
    table: pd.DataFrame,
    looks: Mapping[str, Look],
    value: str,
    label: str,
    *,
    bars: bool = False,
    notes: Sequence[str] = (),
) -> Figure:
    """A figure of ``draw_intervals``, as high as it has rows."""
    figure, ax = canvas(COLUMN, height_of(table))
    draw_intervals(ax, table, looks, value, label, bars=bars, notes=notes)
    return figure


def cost_figure(
    table: pd.DataFrame, looks: Mapping[str, Look], columns: Mapping[str, str]
) -> Figure:
    """Bars of several costs side by side; ``columns`` maps a column to its axis label."""
    figure = Figure(figsize=(COLUMN, height_of(table)), layout="constrained")
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for ax, (column, label) in zip(axes, columns.items(), strict=True):
        largest = table[column].max()
        for row, entry in enumerate(table.to_dict("records")):
            look, at = looks[entry["setting"]], entry[column]
            if pd.isna(at):
                ax.text(0, row, "  not measured", va="center", color=MUTED, fontsize=7.5)
                continue
            _bar(ax, row, at, look)
            ax.text(at, row, f" {at:,.0f}" if at >= 10 else f" {at:.2g}", va="center", fontsize=7)
        ax.set_xlim(0, largest * 1.28 if largest > 0 else 1)
        # Three axes leave a column of text no room for long labels and many ticks.
        narrow = len(columns) > 2
        ax.locator_params(axis="x", nbins=2 if narrow else 4)
        _rows(ax, table, ())
        ax.set_xlabel(label.replace(" (", "\n(") if narrow else label)
    return figure
