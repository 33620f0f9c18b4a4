"""Where responses part: first divergence of two runs, and Div_Index of all settings.

A position counts tokens from 0. Two responses diverge at the first position where their tokens
differ. If one is a prefix of the other they diverge at the shorter length, unless the shorter
one was cut by the token limit or an error: what it would have said next is not known, so the
pair is censored there. Two errors are never identical, whatever they left behind. Responses that
never diverge have no position (NEVER, -1; null in tables).
Definitions: Yuan et al. 2025, section 3.1, with the open points settled as said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nondet.metrics.prefix import NEVER, PrefixForest

# Why a response without divergence is no longer observed.
FINISHED, CUT = "finished", "cut"


@dataclass(frozen=True)
class Comparison:
    """Responses of some runs against the same items of others; all arrays of one shape.

    prefix: equal leading tokens. position: first divergence, or NEVER. identical: same tokens,
    same length, no error. cut: not diverged and at least one side was cut, so only known up to
    ``prefix``.
    """

    prefix: NDArray[np.int64]
    position: NDArray[np.int64]
    identical: NDArray[np.bool_]
    cut: NDArray[np.bool_]

    @property
    def diverged(self) -> NDArray[np.bool_]:
        """Whether there is a position."""
        return np.not_equal(self.position, NEVER)

    @property
    def time(self) -> NDArray[np.int64]:
        """Last position compared: of the divergence, or the last common token (at least 0)."""
        return np.where(self.diverged, self.position, np.maximum(self.prefix - 1, 0))


def compare_lengths(
    prefix: NDArray[np.int64],
    lengths_a: NDArray[np.int64],
    lengths_b: NDArray[np.int64],
    cut_a: NDArray[np.bool_],
    cut_b: NDArray[np.bool_],
    lost: NDArray[np.bool_],
) -> Comparison:
    """Comparison from common prefixes, lengths, who was cut, and where a side ended in an error
    (shapes broadcast)."""
    shorter = np.minimum(lengths_a, lengths_b)
    shorter_cut = np.where(lengths_a < lengths_b, cut_a, cut_b)
    same_length = lengths_a == lengths_b
    event = (prefix < shorter) | (~same_length & ~shorter_cut)
    identical = ~event & same_length & ~lost
    unknown = np.where(same_length, cut_a | cut_b, shorter_cut)
    return Comparison(
        prefix=np.asarray(prefix),
        position=np.where(event, prefix, NEVER),
        identical=identical,
        cut=~event & unknown,
    )


def against(forest: PrefixForest, run: int) -> Comparison:
    """Every run against one run; arrays (P, C)."""
    return compare_lengths(
        forest.prefix_with(run),
        forest.lengths_PC[:, [run]],
        forest.lengths_PC,
        forest.cut_PC[:, [run]],
        forest.cut_PC,
        forest.error_PC[:, [run]] | forest.error_PC,
    )


def div_index(forest: PrefixForest, runs: Sequence[int]) -> NDArray[np.int64]:
    """First position where the responses of some runs are not all equal, int64 (P,), or NEVER.

    It is the earliest divergence of any two of them. Comparing all with the longest is enough: at
    the earliest divergence the longest still has a token or is one of the two that part.
    """
    chosen = np.asarray(list(runs), dtype=np.int64)
    longest = chosen[np.argmax(forest.lengths_PC[:, chosen], axis=1)]
    prefix = forest.prefix_with(longest)[:, chosen]
    rows = np.arange(len(longest))
    found = compare_lengths(
        prefix,
        forest.lengths_PC[rows, longest][:, None],
        forest.lengths_PC[:, chosen],
        forest.cut_PC[rows, longest][:, None],
        forest.cut_PC[:, chosen],
        forest.error_PC[:, chosen],
    )
    far = np.iinfo(np.int64).max
    first = np.where(found.diverged, found.position, far).min(axis=1, initial=far)
    return np.where(first == far, NEVER, first)


def common_length(forest: PrefixForest, runs: Sequence[int]) -> NDArray[np.int64]:
    """Length of the prefix shared by all of some runs, int64 (P,)."""
    chosen = np.asarray(list(runs), dtype=np.int64)
    shared: NDArray[np.int64] = forest.prefix_with(int(chosen[0]))[:, chosen].min(axis=1)
    return shared


def unique_outputs(forest: PrefixForest, runs: Sequence[int]) -> NDArray[np.int64]:
    """Number of distinct token sequences among some runs, int64 (P,); 1 means all identical.

    Each error counts as one of its own.
    Source: "count of unique outputs", arXiv 2511.17826.
    """
    chosen = list(runs)
    distinct = np.zeros(len(forest.order_PC), dtype=np.int64)
    for place, run in enumerate(chosen):
        prefix = forest.prefix_with(run)[:, chosen[:place]]
        same = (prefix == forest.lengths_PC[:, [run]]) & (
            prefix == forest.lengths_PC[:, chosen[:place]]
        )
        same &= ~(forest.error_PC[:, [run]] | forest.error_PC[:, chosen[:place]])
        distinct += ~same.any(axis=1)
    return distinct


def decided(position: NDArray[np.int64], unique: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an item's responses are known to part or to be all equal, bool (P,).

    An error or a cut leaves it open: nobody knows what the response would have said. position and
    unique: (P,), of the same runs, from ``div_index`` and ``unique_outputs``.
    """
    known: NDArray[np.bool_] = (position != NEVER) | (unique == 1)
    return known


def median_position(position: NDArray[np.int64]) -> NDArray[np.float64]:
    """Median over items of the diverged positions, (P, C) to (C,); NaN where none diverged."""
    far = np.iinfo(np.int64).max
    ordered = np.sort(np.where(position == NEVER, far, position), axis=0)
    count = (position != NEVER).sum(axis=0)
    runs = np.arange(position.shape[1])
    if not len(position):
        return np.full(len(runs), np.nan)
    low = ordered[np.maximum(count - 1, 0) // 2, runs].astype(np.float64)
    high = ordered[np.minimum(count // 2, len(position) - 1), runs].astype(np.float64)
    return np.where(count > 0, (low + high) / 2, np.nan)
