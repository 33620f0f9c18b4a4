"""Where answers part, along the tokens: survival of agreement, incidence, histogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nondet.report.style import COLUMN, FAINT, INK, MUTED, Look, shorten

# More curves than these cannot be told apart.
MOST_CURVES = 8
RISK_ROW = 0.17
# Bins of a token axis when curves are thinned; a figure is about as many pixels wide.
BINS = 400


def token_axis(ax: Axes, last: int) -> list[int]:
    """A token axis: 0, then powers of two on a log scale. Returns the tick positions."""
    ax.set_xscale("symlog", base=2, linthresh=1, linscale=0.7)
    ticks = [0, *(2**power for power in range(0, max(1, int(last)).bit_length() + 1))]
    ticks = [tick for tick in ticks if tick <= max(last, 1)]
    step = max(1, (len(ticks) + 6) // 8)
    ticks = [0, *ticks[1::step]]
    ax.set_xlim(0, max(last, 1) * 1.03)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return ticks


def thinned(curve: pd.DataFrame, last: int) -> pd.DataFrame:
    """The rows of a curve that can be told apart on the axis: the last one of each narrow bin."""
    place = np.log2(curve["position"].clip(lower=0) + 1) / np.log2(last + 2)
    bins = (place * BINS).astype(int).where(curve["position"] >= 0, -1)
    thin: pd.DataFrame = curve[~bins.duplicated(keep="last")]
    return thin


def draw_survival(
    ax: Axes, curves: pd.DataFrame, looks: Mapping[str, Look], last: int, value: str = "survival"
) -> Axes:
    """Step curves with their bands.

    ``curves`` has the columns setting, position, ``value``, low, high, from position 0 on;
    each value holds from its position to the next one.
    """
    alpha = 0.16 if curves["setting"].nunique() <= 3 else 0.07
    for setting, whole in curves.groupby("setting", sort=False):
        look, curve = looks[str(setting)], thinned(whole, last)
        position = np.append(curve["position"].to_numpy(float), last)
        steps = {name: np.append(curve[name], curve[name].iloc[-1]) for name in (value,)}
        ax.step(position, steps[value], where="post", color=look.colour, ls=look.line)
        if curve[["low", "high"]].notna().all(axis=None):
            low, high = (np.append(curve[n], curve[n].iloc[-1]) for n in ("low", "high"))
            ax.fill_between(position, low, high, step="post", color=look.colour, alpha=alpha, lw=0)
    ax.set_ylim(-0.02, 1.02)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    ax.grid(axis="y", color=FAINT, lw=0.6)
    return ax


def draw_rows(
    ax: Axes,
    rows: Sequence[tuple[str, Sequence[str]]],
    ticks: Sequence[float],
    looks: Mapping[str, Look],
    heading: str,
) -> Axes:
    """A small table under a token axis: per setting its line, its name, a number at each tick."""
    step = 2 if heading else 1.15
    ax.set_ylim((len(rows) - 1) * step + 0.3 + (1.5 if heading else 0.6), -1.4 if heading else -0.4)
    ax.axis("off")
    style: dict[str, Any] = {"va": "center", "fontsize": 7.2}
    across = ax.get_yaxis_transform()
    ax.text(0, -0.9, heading, transform=across, color=MUTED, ha="left", **style)
    for row, (setting, numbers) in enumerate(rows):
        look, y = looks[setting], step * row + 0.3
        ax.plot([0, 0.07], [y, y], color=look.colour, ls=look.line, transform=across)
        ax.text(0.09, y, shorten(setting, 52), transform=across, ha="left", **style)
        for tick, number in zip(ticks, numbers, strict=True):
            ax.text(tick, y + 0.95, number, ha="center", color=MUTED, **style)
    return ax


def curve_figure(
    curves: pd.DataFrame,
    at_risk: pd.DataFrame | None,
    looks: Mapping[str, Look],
    last: int,
    *,
    value: str,
    label: str,
) -> Figure:
    """Curves with their names, and where ``at_risk`` is given the numbers at risk, below.

    ``at_risk`` has the columns setting, position, at_risk for any positions; the number printed
    at a tick is that of the last position at or before it.
    """
    names = [str(name) for name in curves["setting"].unique()]
    below = RISK_ROW * (2 * len(names) + 1.2 if at_risk is not None else 1.15 * len(names) + 0.6)
    figure = Figure(figsize=(COLUMN, 2.55 + below), layout="constrained")
    ax, under = figure.subplots(2, 1, sharex=True, height_ratios=[2.55, below])
    draw_survival(ax, curves, looks, last, value)
    ticks = token_axis(ax, last)
    ax.tick_params(labelbottom=True)
    ax.set_xlabel("token position, log scale")
    ax.set_ylabel(label)
    rows = [(name, _risk(at_risk, name, ticks)) for name in names]
    draw_rows(under, rows, ticks, looks, "items still compared" if at_risk is not None else "")
    return figure


def _risk(at_risk: pd.DataFrame | None, name: str, ticks: Sequence[int]) -> list[str]:
    if at_risk is None:
        return [""] * len(ticks)
    part = at_risk[at_risk["setting"] == name]
    numbers = []
    for tick in ticks:
        later = part[part["position"] >= tick]
        numbers.append(str(int(later["at_risk"].iloc[0])) if len(later) else "0")
    return numbers


def histogram_figure(table: pd.DataFrame, looks: Mapping[str, Look]) -> Figure:
    """Counts of first divergences in bins, one small panel a group, sharing the axes.

    ``table`` has the columns group, bin (label, in order), items; the last bin is "never".
    """
    groups = [str(group) for group in table["group"].unique()]
    height = 0.55 + 1.05 * len(groups)
    figure = Figure(figsize=(COLUMN, max(height, 1.9)), layout="constrained")
    axes = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, group in zip(axes, groups, strict=True):
        part, look = table[table["group"] == group], looks[group]
        places = np.arange(len(part))
        counts = part["items"].to_numpy()
        ax.bar(places, counts, 0.8, color=look.colour, alpha=0.32, lw=0)
        ax.bar(places, counts, 0.8, fill=False, edgecolor=look.colour, hatch=look.hatch, lw=0.9)
        for place, count in zip(places, counts, strict=True):
            if count:
                ax.text(place, count, f"{count:,}", ha="center", va="bottom", fontsize=7)
        ax.set_title(shorten(group, 60), loc="left", color=INK, pad=3)
        ax.axvline(len(part) - 1.5, color=MUTED, lw=0.6, ls=(0, (2, 2)))
        ax.margins(y=0.22)
        ax.locator_params(axis="y", nbins=3, integer=True)
    labels = table[table["group"] == groups[0]]["bin"].tolist()
    axes[-1].set_xticks(range(len(labels)), labels)
    crowded = len(labels) > 9
    axes[-1].tick_params(axis="x", length=0, rotation=40 if crowded else 0)
    axes[-1].set_xlabel("first differing token (counted from 0)")
    figure.supylabel("items", fontsize=8.5)
    return figure
