"""How attention is cut: what is part of the order of additions, and what is about speed alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from .support import cdiv

BLOCK = 128
"""Keys of a block; see ``block_of`` for the types and widths that take fewer."""
SPLIT = 128
"""Keys of a split: few enough that one sequence fills the GPU at decode."""
WALK = 0.75
"""Programs a processor from which decode walks its splits instead of sharing them out."""
MERGE = 16
"""Splits from which a kernel of its own adds them up, over more processors."""
AHEAD = 8
"""Splits that the last part of a sequence reads at a time when it adds them up."""
PARTS = 4
"""Programs a processor among which splits are shared out."""
PARALLEL_SHAPE = (4, 2)
"""Warps and stages of such a program; never changes a bit."""


def block_of(width: int, size: int) -> int:
    """Keys of a block: part of the order of additions, so a function of width and type alone."""
    return BLOCK // (1 if size == 2 else 2) // (1 if width <= 128 else 2)


def shape_of(rows: int, width: int, size: int, tf32: bool) -> tuple[int, int, int, str]:
    """Rows of a tile, warps, stages, and what brings the keys: "loads", "copies" (TMA), "warps".

    For a sequence's (query, head) rows; never changes a bit.
    """
    if size == 4:
        if rows > 16:
            return 32, 8, 1, "loads"
        # Without tensor cores every row of a tile costs, also those that hold no query; with them
        # (TF32) a tile has 16 rows at least.
        return (16, 4, 1, "loads") if tf32 else (4, 4, 2, "loads")
    if rows <= 64:
        return 16, 4, 3 if width <= 128 else 2, "loads"
    if width > 128:
        return 64, 8, 2, "loads"
    return (128, 4, 2, "warps") if width == 128 else copied_shape(width)


def copied_shape(width: int) -> tuple[int, int, int, str]:
    """The same with keys brought by the copy engine to warps that all do the same."""
    return (64, 4, 2, "copies") if width <= 64 else (128, 8, 3, "copies")


class Share(NamedTuple):
    """How splits are shared out: ``parts`` programs a tile with ``per`` splits each."""

    parallel: bool
    parts: int
    per: int
    warps: int
    stages: int
    later: bool
    """A kernel of its own adds the splits up."""


def share(splits: int, programs: int, processors: int, shape: tuple[int, int, int],
          parallel: bool | None) -> Share:  # fmt: skip
    """Share ``splits`` of each of ``programs`` tiles out over the processors, or walk them.

    Args:
        shape: rows of a tile, warps, stages.
        parallel: share out or walk; chosen if None. Never changes a bit.
    """
    bm, warps, stages = shape
    if parallel is None:
        parallel = splits > 1 and bm <= 16 and programs < WALK * processors
    if not parallel:
        if bm <= 16 and splits <= 4:
            stages = min(stages, 2)
        return Share(False, 1, splits, warps, stages, False)
    # Enough parts for every processor, several splits each where there are more than that.
    per = math.ceil(splits * programs / (PARTS * processors))
    warps, stages = PARALLEL_SHAPE
    return Share(True, cdiv(splits, per), per, warps, stages, splits > MERGE)
