"""How figures look: one palette, one marker a dtype, colours that follow the page's theme.

The palette is Okabe and Ito's, told apart by people with any common colour blindness. A dtype has
a colour and a marker shape; invariant kernels are hollow; within a dtype the settings differ by
line style. So a figure can be read in black and white.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Ink, muted ink and paper as matplotlib draws them. ``svg.inline`` replaces these exact values by
# the page's own variables, so they must be used for nothing else.
INK, MUTED, PAPER = "#16191d", "#6a6f76", "#fefefe"
FAINT = "#d9dbde"

DTYPE_COLOURS = {
    "bf16": "#d55e00",
    "fp16": "#cc79a7",
    "fp32": "#0072b2",
    "layercast": "#009e73",
}
OTHER_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DTYPE_MARKERS = {"bf16": "o", "fp16": "D", "fp32": "s", "layercast": "^"}
OTHER_MARKERS = ("o", "s", "^", "D", "v", "P")
DTYPE_HATCHES = {"bf16": "", "fp16": "\\\\", "fp32": "////", "layercast": "xxx"}
OTHER_HATCHES = ("", "////", "\\\\", "xxx", "---", "+++")
LINES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.4)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1.5, 1, 1.5, 1, 1.5)),
    (0, (2.5, 2.5)),
    (0, (8, 1.5, 2, 1.5)),
)

# Widths in inches: a column of the page, and the whole page.
COLUMN, WIDE = 4.9, 7.4

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.minor.width": 0.5,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
    # Names may hold dollar signs.
    "text.parse_math": False,
    "figure.dpi": 100,
    "figure.constrained_layout.w_pad": 0.07,
    "figure.constrained_layout.h_pad": 0.05,
}


@dataclass(frozen=True)
class Look:
    """How one setting is drawn."""

    colour: str
    marker: str
    line: Any
    hatch: str
    hollow: bool

    @property
    def face(self) -> str:
        """Fill of a marker: the colour, or the paper for invariant kernels."""
        return PAPER if self.hollow else self.colour


def looks(settings: Sequence[Mapping[str, Any]]) -> list[Look]:
    """One Look a setting, from its factors, in order.

    Colour and marker follow the dtype when it varies; otherwise the settings take the palette in
    turn. Settings that share a colour get different line styles.
    """
    dtypes = [str(setting.get("dtype", "")) for setting in settings]
    by_dtype = len(set(dtypes)) > 1 or len(settings) == 1
    result: list[Look] = []
    seen: dict[str, int] = {}
    for place, (setting, dtype) in enumerate(zip(settings, dtypes, strict=True)):
        turn = place % len(OTHER_COLOURS)
        known = by_dtype and dtype in DTYPE_COLOURS
        colour = DTYPE_COLOURS[dtype] if known else OTHER_COLOURS[turn]
        count = seen[colour] = seen.get(colour, -1) + 1
        # Curves that lie on each other stay visible when their dashes differ.
        count = count if by_dtype else place
        result.append(
            Look(
                colour,
                DTYPE_MARKERS[dtype] if known else OTHER_MARKERS[turn],
                LINES[count % len(LINES)],
                DTYPE_HATCHES[dtype] if known else OTHER_HATCHES[turn],
                str(setting.get("kernels")).endswith("invariant"),
            )
        )
    return result


def told_apart(looks: Mapping[str, Look], names: Sequence[str]) -> dict[str, Look]:
    """The looks of curves drawn together: no two of one colour have the same dashes, as long as
    there are enough of them. A curve keeps its own where it can."""
    free: dict[str, list[Any]] = {}
    kept = {}
    for name in names:
        left = free.setdefault(looks[name].colour, list(LINES))
        if looks[name].line in left:
            left.remove(looks[name].line)
            kept[name] = looks[name]
    for name in names:
        left = free[looks[name].colour]
        if name not in kept:
            kept[name] = replace(looks[name], line=left.pop(0)) if left else looks[name]
    return {name: kept[name] for name in names}


def house() -> AbstractContextManager[None]:
    """Context in which figures get the house style."""
    return mpl.rc_context(cast(Any, RC))


def canvas(width: float, height: float, **kwargs: Any) -> tuple[Figure, Axes]:
    """A figure with one axis, in inches. Call inside ``house``."""
    figure = Figure(figsize=(width, height), layout="constrained", **kwargs)
    return figure, figure.add_subplot()


def wrap(label: str, width: int = 30) -> str:
    """A label on at most two lines, broken after a comma or space where there is one."""
    if len(label) <= width:
        return label
    lines = textwrap.wrap(label, width, break_on_hyphens=False)
    if len(lines) > 2:
        lines = [lines[0], shorten(" ".join(lines[1:]), width)]
    return "\n".join(lines)


def shorten(label: str, limit: int = 30) -> str:
    """A label cut in its middle when it is longer than ``limit`` characters."""
    if len(label) <= limit:
        return label
    head = (limit - 1) * 2 // 3
    return label[:head].rstrip() + "…" + label[-(limit - 1 - head) :].lstrip()
