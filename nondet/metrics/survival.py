"""Survival of agreement: for how long do two runs say the same?

Time is a token position counted from 0. Event: the responses part at that position. Censored at
the last position compared: the token limit cut them, or both finished and were identical. The
Kaplan-Meier curve treats both kinds of end as "no longer observed" and so describes the hazard
of a token; the cumulative incidence treats "finished identical" as a competing event and
describes the share of responses that ever part (Aalen and Johansen 1978).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from nondet.metrics.intervals import LEVEL, item_weights

CENSORED, DIVERGED, FINISHED = 0, 1, 2
RESAMPLES = 500
_ROUNDING = 1e-12


class Curve(NamedTuple):
    """One curve at its M distinct times; every array is (M,).

    time: positions. at_risk: items still agreeing and observed just before. events: divergences
    at that position. survival: share still agreeing after it. low, high: band. incidence: share
    of all items that have parted; finished: share that has finished identical.
    """

    time: NDArray[np.int64]
    at_risk: NDArray[np.int64]
    events: NDArray[np.int64]
    survival: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    incidence: NDArray[np.float64]
    incidence_low: NDArray[np.float64]
    incidence_high: NDArray[np.float64]
    finished: NDArray[np.float64]


def _tables(
    weights: NDArray[np.int64],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    status: NDArray[np.int64],
) -> tuple[NDArray[np.float64], ...]:
    """At risk, divergences and finishes at each distinct time, for rows of weights (B, P)."""
    sorted_weights = weights[:, order].astype(np.float64)
    kind = status[order]
    left = np.add.reduceat(sorted_weights, starts, axis=1)
    events = np.add.reduceat(sorted_weights * (kind == DIVERGED), starts, axis=1)
    finished = np.add.reduceat(sorted_weights * (kind == FINISHED), starts, axis=1)
    gone = np.cumsum(left, axis=1)
    at_risk = gone[:, -1:] - gone + left
    return at_risk, events, finished


def _curves(
    at_risk: NDArray[np.float64], events: NDArray[np.float64], finished: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Kaplan-Meier survival and both cumulative incidences, (B, M) each."""
    some = np.maximum(at_risk, 1)
    survival = np.asarray(np.cumprod(1 - events / some, axis=1), dtype=np.float64)
    both = np.cumprod(1 - (events + finished) / some, axis=1)
    before = np.concatenate([np.ones((len(both), 1)), both[:, :-1]], axis=1)
    incidence = np.cumsum(before * events / some, axis=1)
    done = np.cumsum(before * finished / some, axis=1)
    return survival, incidence, done


def _band(
    survival_M: NDArray[np.float64],
    drawn_BM: NDArray[np.float64],
    intact_M: NDArray[np.float64],
    parted_M: NDArray[np.float64],
    level: float,
) -> NDArray[np.float64]:
    """Pointwise band, (2, M): the spread of the resampled curves on the scale log(-log S).

    That scale keeps the band within 0 and 1 and its coverage near the level with few items
    (Kalbfleisch and Prentice 1980), which plain percentiles do not. Resamples of a curve that is
    at 1 or 0 do not move: there exact bounds are taken, for ``intact_M`` items of which none has
    parted and ``parted_M`` of which all have. NaN where the resamples do not move otherwise.
    """
    band = np.empty((2, len(survival_M)))
    # Sums of shares end a rounding error away from 0 or 1.
    untouched, gone = survival_M >= 1 - _ROUNDING, survival_M <= _ROUNDING
    inside = ~gone & ~untouched
    value = survival_M[inside]
    spread = drawn_BM[:, inside].std(axis=0, ddof=1) / (value * -np.log(value))
    # Resamples of a single item are all the same.
    reach = float(norm.ppf((1 + level) / 2)) * np.where(spread > _ROUNDING, spread, np.nan)
    band[0, inside], band[1, inside] = value ** np.exp(reach), value ** np.exp(-reach)
    band[0, untouched], band[1, untouched] = 1 - _unseen(intact_M, level)[untouched], 1.0
    band[0, gone], band[1, gone] = 0.0, _unseen(parted_M, level)[gone]
    return band


def _unseen(items_M: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Exact upper bound of a share of which 0 of n was seen, from n at each time."""
    return np.asarray(1 - ((1 - level) / 2) ** (1 / np.maximum(items_M, 1)))


def _observed(
    time_P: NDArray[np.int64], item_P: NDArray[np.int64], times_M: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Items of which a row lasts at least until each time, (M,)."""
    last = np.full(int(item_P.max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, item_P, time_P)
    return np.asarray((last[None, :] >= times_M[:, None]).sum(axis=1), dtype=np.float64)


def agreement_curve(
    time_P: NDArray[np.int64],
    status_P: NDArray[np.int64],
    rng: np.random.Generator,
    item_P: NDArray[np.int64] | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Curve:
    """Kaplan-Meier curve and cumulative incidence with bands from resampled items.

    Args:
        time_P: position of the divergence or the last position compared, (P,).
        status_P: CENSORED (cut), DIVERGED or FINISHED (identical to the end), (P,).
        rng: draws the resamples.
        item_P: the item of each row when an item has several rows; they are drawn together.
        resamples: 0 leaves the bands NaN.

    Where nothing has parted yet the band is the exact binomial one for the items at risk; of the
    incidence for the items that were not cut before. Where all have parted it is the exact one
    for as many items as were followed: those at risk over the share that was still at risk (the
    effective number of Peto et al. 1977, without censoring all of them). With one item it is NaN
    in between.
    """
    if not len(time_P):
        empty = np.empty(0)
        none = np.empty(0, dtype=np.int64)
        return Curve(none, none, none, empty, empty, empty, empty, empty, empty, empty)
    order = np.argsort(time_P, kind="stable")
    times, starts = np.unique(time_P[order], return_index=True)
    status = np.asarray(status_P, dtype=np.int64)
    ones = np.ones((1, len(time_P)), dtype=np.int64)
    at_risk, events, ended = _tables(ones, order, starts, status)
    survival, incidence, finished = _curves(at_risk, events, ended)
    bands = np.full((4, len(times)), np.nan)
    if resamples:
        items = np.arange(len(time_P)) if item_P is None else item_P
        weights = item_weights(int(items.max()) + 1, rng, resamples)[:, items]
        drawn = _curves(*_tables(weights, order, starts, status))
        left = _observed(time_P, items, times)
        effective = np.minimum(left / np.append(1.0, survival[0][:-1]).clip(_ROUNDING), left[0])
        bands[:2] = _band(survival[0], drawn[0], left, effective, level)
        # What became of all but the cut ones is known for good.
        known = np.where(status == CENSORED, time_P, times[-1])
        followed = _observed(known, items, times)
        bands[2:] = 1 - _band(1 - incidence[0], 1 - drawn[1], followed, followed, level)[::-1]
    return Curve(
        times,
        at_risk[0].astype(np.int64),
        events[0].astype(np.int64),
        survival[0],
        bands[0],
        bands[1],
        incidence[0],
        bands[2],
        bands[3],
        finished[0],
    )


def at_positions(curve: Curve, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Survival at any positions (a step function, 1 before the first time)."""
    if not len(curve.time):
        return np.ones(len(positions))
    place = np.searchsorted(curve.time, positions, side="right") - 1
    return np.where(place < 0, 1.0, curve.survival[np.maximum(place, 0)])
