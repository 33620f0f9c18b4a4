"""Stored log-probabilities of two or more runs, compared bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nondet.metrics.probability import absolute_differences, sum_of_differences
from nondet.metrics.ragged import from_arrow
from nondet.runs import Run


def logprobs(run: Run) -> list[NDArray[np.float32]]:
    """Those of the emitted tokens (nats), one array an item in task order; NaN where a value is
    null, and an empty array where the engine gave none for the whole response."""
    rows = from_arrow(run.table(["logprobs"])["logprobs"]).rows()
    return [np.ascontiguousarray(row, dtype=np.float32) for row in rows]


def bits(rows: Sequence[NDArray[np.float32]]) -> list[list[int]]:
    """Integer views. NaN is not equal to itself as a number; as bits it is, and 0.0 is not -0.0."""
    return [row.view(np.int32).tolist() for row in rows]


def first_difference(sides: Sequence[Sequence[Any]]) -> int | None:
    """The first position, from 0, where not all are the same; a prefix differs at its end."""
    for position, values in enumerate(zip_longest(*sides)):
        if len(set(values)) > 1:
            return position
    return None


def largest_gap(sides: Sequence[NDArray[np.float32]], end: int | None) -> float:
    """The largest difference (nats) of one item's log-probabilities before ``end``, None for all.

    Positions where a side has none are left out; 0 where nothing is left.
    """
    stop = min(len(side) for side in sides)
    stop = stop if end is None else min(stop, end)
    rows = np.array([side[:stop] for side in sides], dtype=np.float64)
    return sum_of_differences(absolute_differences(rows.min(axis=0), rows.max(axis=0)))[0]
