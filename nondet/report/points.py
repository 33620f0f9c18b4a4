"""Figures with one mark an item: the gap at the fork against the noise, and the length spread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from nondet.report.style import COLUMN, FAINT, INK, MUTED, Look, canvas, shorten

# Differences below this are drawn at the left or lower edge, with exact zeros.
SMALLEST = 1e-6
MOST_LINES = 80


def gap_figure(table: pd.DataFrame, looks: Mapping[str, Look]) -> Figure:
    """Top-1 to top-2 gap at each fork against the logprob noise just before it, both in nats.

    ``table`` has the columns group, gap, noise; infinite ones (a token that was ruled out) are
    drawn at the far edge. Below the line, where the gap is smaller than twice the noise, rounding
    is enough to turn the answer; above it, it is not.
    """
    figure, ax = canvas(COLUMN, 3.3)
    values = table[["gap", "noise"]].to_numpy(dtype=float)
    top = 10 ** np.ceil(np.log10(max(values[np.isfinite(values)].max(initial=0) * 1.5, 1e-2)))
    table = table.assign(gap=table["gap"].clip(upper=top), noise=table["noise"].clip(upper=top))
    ax.set_xscale("symlog", linthresh=SMALLEST, linscale=0.5)
    ax.set_yscale("symlog", linthresh=SMALLEST, linscale=0.5)
    line = np.concatenate([[0.0], np.geomspace(SMALLEST / 10, top, 60)])
    ax.plot(line, 2 * line, color=MUTED, lw=0.9, ls=(0, (4, 2)))
    ax.fill_between(line, 0, 2 * line, color=MUTED, alpha=0.08, lw=0)
    ax.annotate(
        "gap = 2 × difference",
        (8e-6, 1.6e-5),
        xytext=(7, -3),
        textcoords="offset points",
        va="top",
        color=MUTED,
        fontsize=7.5,
    )
    for group, part in table.groupby("group", sort=False):
        look = looks[str(group)]
        ax.plot(
            part["noise"],
            part["gap"],
            look.marker,
            color=look.colour,
            mfc=look.face if look.hollow else look.colour,
            ms=4,
            mew=0.6,
            mec=look.colour,
            alpha=0.65,
            label=shorten(str(group), 40),
            rasterized=len(table) > 2000,
        )
    ax.set_xlim(-SMALLEST / 4, top)
    ax.set_ylim(-SMALLEST / 4, top)
    ticks = [0, *10.0 ** np.arange(-6, np.log10(top) + 0.5)]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ticks)
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_nats))
    ax.grid(color=FAINT, lw=0.5)
    ax.set_xlabel("largest logprob difference before the fork (nats)")
    ax.set_ylabel("top-1 to top-2 gap at the fork (nats)")
    if table["group"].nunique() > 1:
        columns = max(1, 72 // (8 + table["group"].str.len().clip(upper=40).max()))
        figure.legend(
            loc="outside upper left", ncols=min(4, columns), handletextpad=0.2, labelcolor=INK
        )
    return figure


def _nats(value: float, _: int) -> str:
    if value == 0:
        return "0"
    power = round(np.log10(value))
    small = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:g}" if -3 <= power <= 3 else f"10{small}"


def length_figure(table: pd.DataFrame) -> Figure:
    """Shortest to longest response of every item over the settings, items sorted by length.

    ``table`` has the columns item_id, shortest, mean, longest (tokens), in the order drawn.
    """
    figure, ax = canvas(COLUMN, 2.5)
    places = np.arange(len(table))
    if len(table) <= MOST_LINES:
        ax.vlines(places, table["shortest"], table["longest"], color="#0072b2", lw=2.2, alpha=0.5)
        ax.plot(places, table["mean"], "_", color=INK, ms=5, mew=1)
    else:
        ax.fill_between(
            places,
            table["shortest"],
            table["longest"],
            step="mid",
            color="#0072b2",
            alpha=0.4,
            lw=0,
            rasterized=len(table) > 3000,
        )
        ax.plot(places, table["mean"], color=INK, lw=0.8)
    ax.set_ylim(0, max(1, table["longest"].max() * 1.06))
    ax.set_xlim(-0.8, len(table) - 0.2)
    ax.locator_params(axis="x", integer=True, nbins=7)
    ax.grid(axis="y", color=FAINT, lw=0.6)
    ax.set_xlabel("items, shortest mean first")
    ax.set_ylabel("response length (tokens)")
    return figure
