"""The prefix tree of the responses to one item: every question about equal tokens is read off it.

Common prefixes form an ultrametric, so for one item it is enough to keep an order of the runs, a
depth-first walk of the tree, and the common prefix of neighbours in it: the common prefix of
any two runs is the smallest value between them. Two small integers a run and item therefore
replace the tokens, and 720 runs of 1,000 items take 6 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEVER = -1
# The branch of rows that end where they leave the pivot; below every token id.
_ENDED = np.iinfo(np.int64).min
_FAR = np.iinfo(np.int64).max


def common_prefix(a: NDArray[Any], b: NDArray[Any], start: int = 0) -> int:
    """Number of equal leading tokens of two rows, known to agree before ``start``."""
    size, step = min(a.size, b.size), 256
    while start < size:
        stop = min(start + step, size)
        differ = a[start:stop] != b[start:stop]
        place = int(differ.argmax())
        if differ[place]:
            return start + place
        start, step = stop, step * 16
    return size


def walk(rows: Sequence[NDArray[Any]]) -> tuple[list[int], list[int]]:
    """Depth-first order of the prefix tree of some rows, and prefixes shared with the one before.

    Returns:
        The row numbers in walking order, and for each the number of tokens that it shares with
        its predecessor (0 for the first).
    """
    order: list[int] = []
    shared: list[int] = []
    stack = [(list(range(len(rows))), 0, 0)] if rows else []
    while stack:
        members, before, known = stack.pop()
        pivot = members[0]
        order.append(pivot)
        shared.append(before)
        branches: dict[tuple[int, int], list[int]] = {}
        for other in members[1:]:
            length = common_prefix(rows[pivot], rows[other], known)
            ended = length == rows[other].size
            branches.setdefault((length, _ENDED if ended else int(rows[other][length])), []).append(
                other
            )
        # The last pushed is walked first: the longest prefix must follow the pivot directly.
        for (length, token), branch in sorted(branches.items()):
            if token == _ENDED:
                # All of these are the same whole row: nothing is left to compare.
                stack.extend(([other], length, length) for other in branch)
            else:
                stack.append((branch, length, length))
    return order, shared


@dataclass(frozen=True)
class PrefixForest:
    """The prefix trees of all items.

    order_PC: int32 (P, C), run numbers in walking order. shared_PC: int32 (P, C), tokens shared
    with the run before in that order. lengths_PC: int64 (P, C), cut_PC: bool (P, C), and error_PC:
    bool (P, C), those of the cut that ended in an error, by run number.
    """

    order_PC: NDArray[np.int32]
    shared_PC: NDArray[np.int32]
    lengths_PC: NDArray[np.int64]
    cut_PC: NDArray[np.bool_]
    error_PC: NDArray[np.bool_]

    @cached_property
    def rank_PC(self) -> NDArray[np.int64]:
        """Place of every run in the walking order."""
        return np.argsort(self.order_PC, axis=1)

    def prefix_with(self, pivot_P: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Common prefix of every run with a pivot run, int64 (P, C).

        ``pivot_P`` is one run number, or one for each item. The pivot's own entry is its length.
        """
        items, runs = self.order_PC.shape
        pivot = np.broadcast_to(np.asarray(pivot_P, dtype=np.int64), (items,))
        rank_PC = self.rank_PC
        at = np.take_along_axis(rank_PC, pivot[:, None], axis=1)
        place = np.arange(runs)
        shared = self.shared_PC.astype(np.int64)
        after = np.minimum.accumulate(np.where(place > at, shared, _FAR), axis=1)
        upto = np.where(place <= at, shared, _FAR)[:, ::-1]
        before = np.minimum.accumulate(upto, axis=1)[:, ::-1]
        before = np.concatenate([before[:, 1:], np.full((items, 1), _FAR)], axis=1)
        walked = np.where(place > at, after, before)
        own = np.take_along_axis(self.lengths_PC, pivot[:, None], axis=1)
        walked = np.where(place == at, own, walked)
        return np.take_along_axis(walked, rank_PC, axis=1)


def build_forest(
    row: Callable[[int, int], NDArray[Any]],
    lengths_PC: NDArray[np.int64],
    cut_PC: NDArray[np.bool_],
    error_PC: NDArray[np.bool_] | None = None,
) -> PrefixForest:
    """The prefix trees of all items; ``row(run, item)`` gives the tokens of one response.

    error_PC: none where it is left out.
    """
    items, runs = lengths_PC.shape
    order = np.empty((items, runs), dtype=np.int32)
    shared = np.empty((items, runs), dtype=np.int32)
    for item in range(items):
        order[item], shared[item] = walk([row(run, item) for run in range(runs)])
    lost = np.zeros_like(cut_PC) if error_PC is None else error_PC
    return PrefixForest(order, shared, lengths_PC, cut_PC, lost)
