"""Figures made of cells: setting by setting, and item by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from nondet.report.style import COLUMN, FAINT, INK, MUTED, PAPER, shorten, wrap

AGREE = LinearSegmentedColormap.from_list("agree", ["#b34700", "#f0d9b5", "#cfe3f2", "#0a5c99"])
MOST_CELLS = 24


def heat_figure(labels: Sequence[str], share_CC: NDArray[np.float64]) -> Figure:
    """Share of items with identical responses for every pair of settings.

    Labels carry numbers that name the columns. NaN cells (a setting without repeat on the
    diagonal, a pair that was not compared) are drawn empty with a dash.
    """
    count = len(labels)
    cell = 0.34 if count <= 14 else 0.22
    widest = max((len(line) for label in labels for line in wrap(label, 34).split("\n")), default=0)
    width = 1.1 + 0.075 * (widest + 3) + cell * count
    figure = Figure(figsize=(max(3.2, width), 0.75 + cell * max(count, 3)))
    figure.set_layout_engine("constrained")
    ax = figure.add_subplot()
    image = ax.imshow(np.ma.masked_invalid(share_CC), cmap=AGREE, vmin=0, vmax=1)
    for row in range(count):
        for column in range(count):
            value = share_CC[row, column]
            if np.isnan(value):
                box = (column - 0.5, row - 0.5)
                ax.add_patch(Rectangle(box, 1, 1, fill=False, ec=FAINT, hatch="///", lw=0))
            if count <= 14:
                dark = not np.isnan(value) and (value < 0.2 or value > 0.8)
                text = "–" if np.isnan(value) else f"{_floor(value)}"
                colour = "white" if dark else (INK if np.isnan(value) else "black")
                ax.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
    names = [f"{wrap(label, 34)}  {place + 1}" for place, label in enumerate(labels)]
    ax.set_yticks(range(count), names, linespacing=1.0)
    ax.set_xticks(range(count), [str(place + 1) for place in range(count)])
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    for spine in ax.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=ax, shrink=0.9, aspect=18, pad=0.02)
    bar.set_ticks([0, 0.5, 1], labels=["0 %", "50 %", "100 %"])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    return figure


def _floor(value: float) -> int:
    """Percent, rounded, but 100 only for exactly all and 0 only for exactly none."""
    percent = round(100 * value)
    if percent == 100 and value < 1:
        return 99
    return 1 if percent == 0 and value > 0 else percent


def raster_figure(
    share_PT: NDArray[np.float64],
    edges: Sequence[int],
    forks: Sequence[float],
    items: Sequence[str],
) -> Figure:
    """Prefix raster: rows are items, columns token positions, colour the share that agrees.

    share_PT: share of the other runs still equal to the reference, NaN after the end of the
        reference's response. edges: token positions of the column borders, one more than columns.
    forks: column coordinate of each item's first fork, NaN where it has none.
    """
    rows = share_PT.shape[0]
    height = 0.8 + min(4.6, max(1.1, 0.16 * rows))
    figure = Figure(figsize=(COLUMN, height), layout="constrained")
    ax = figure.add_subplot()
    image = ax.imshow(
        np.ma.masked_invalid(share_PT),
        cmap=AGREE,
        vmin=0,
        vmax=1,
        aspect="auto",
        interpolation="nearest",
        extent=(0, share_PT.shape[1], rows - 0.5, -0.5),
    )
    if rows <= 60:
        ax.plot(forks, range(rows), "|", color=INK, ms=6, mew=1.2)
    if rows <= 28:
        ax.set_yticks(range(rows), [shorten(str(item), 18) for item in items])
    else:
        ax.set_ylabel(f"{rows:,} items, earliest fork first")
        ax.set_yticks([])
    columns = share_PT.shape[1]
    places = np.unique(np.linspace(0, columns, 6).astype(int))
    ax.set_xticks(places, [f"{edges[place]:,}" for place in places])
    ax.set_xlabel("token position")
    ax.tick_params(length=0)
    ax.set_facecolor(PAPER)
    for spine in ax.spines.values():
        spine.set_color(MUTED)
    bar = figure.colorbar(image, ax=ax, shrink=0.9, aspect=18, pad=0.02)
    bar.set_ticks([0, 0.5, 1], labels=["0 %", "50 %", "100 %"])
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    return figure
