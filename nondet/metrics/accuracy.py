"""Accuracy of runs and its spread over settings.

Std@Acc (Yuan et al. 2025): sample standard deviation, ddof 1, over settings of the accuracy. It is
computed from integer counts, so equal counts give exactly 0 and not floating-point dust.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from nondet.metrics.intervals import (
    LEVEL,
    NOTHING,
    Estimate,
    clopper_pearson,
    share_of_known,
    wilson,
)

UNKNOWN = -1


def accuracy(correct_P: NDArray[np.int8], items: int | None = None) -> Estimate:
    """Share correct of the rows with a verdict, Wilson interval.

    ``items`` is the number of items when each has several rows: the interval then counts items.
    """
    known = correct_P[correct_P != UNKNOWN]
    if not known.size:
        return NOTHING
    if items is None or items >= known.size:
        return wilson(int(known.sum()), known.size)
    return wilson(float(known.mean()) * items, items)


def std_of_counts(counts: Sequence[int], n: int) -> float:
    """Sample standard deviation (ddof 1) of ``counts / n``, exact up to the last square root.

    NaN for fewer than two counts or n = 0; exactly 0 when all counts are equal.
    """
    settings = len(counts)
    if settings < 2 or n == 0:
        return math.nan
    whole = [int(count) for count in counts]
    spread = settings * sum(count * count for count in whole) - sum(whole) ** 2
    return math.sqrt(Fraction(spread, settings * (settings - 1) * n * n))


def std_at_acc(
    correct_CP: NDArray[np.int8],
    level: float = LEVEL,
    item_P: NDArray[np.int64] | None = None,
) -> Estimate:
    """Std@Acc of settings x items, over the items with a verdict in every setting.

    The interval takes the settings as draws of the rounding noise and the items as given: the
    chi-square interval of a normal standard deviation. When all accuracies are equal the lower end
    is 0, and the upper end is what items that nobody saw change could still add: at most the
    exact upper bound of the share of unstable items, each with the largest variance 1/4. With
    ``item_P``, the item of each row, the samples of an item may move together there.
    n is the number of settings.
    """
    known = (correct_CP != UNKNOWN).all(axis=0)
    right = correct_CP[:, known]
    settings, items = right.shape
    value = std_of_counts(right.sum(axis=1, dtype=np.int64).tolist(), items)
    if math.isnan(value):
        return Estimate(value, math.nan, math.nan, settings)
    if value == 0:
        item_of = np.arange(items) if item_P is None else item_P[known]
        distinct = len(set(item_of.tolist()))
        unstable = len(set(item_of[(right != right[0]).any(axis=0)].tolist()))
        share = clopper_pearson(unstable, distinct, level).high
        return Estimate(0.0, 0.0, math.sqrt(share / (4 * distinct)), settings)
    tail = (1 - level) / 2
    free = settings - 1
    low = value * math.sqrt(free / stats.chi2.ppf(1 - tail, free))
    high = value * math.sqrt(free / stats.chi2.ppf(tail, free))
    # No spread of shares between 0 and 1 is larger than this.
    most = math.sqrt(settings / free) / 2
    return Estimate(value, float(low), min(float(high), most), settings)


def std_over_items(
    correct_CP: NDArray[np.int8], rng: np.random.Generator, resamples: int = 2000
) -> Estimate:
    """Std@Acc with the percentile bootstrap over items. Kept for comparison: resampling adds its
    own spread to a standard deviation, so this interval sits too high (see the coverage test)."""
    known = (correct_CP != UNKNOWN).all(axis=0)
    right = correct_CP[:, known].astype(np.int64)
    items = right.shape[1]
    value = std_of_counts(right.sum(axis=1).tolist(), items)
    if math.isnan(value):
        return Estimate(value, math.nan, math.nan, items)
    weights = rng.multinomial(items, np.full(items, 1 / items), size=resamples)
    drawn = np.std(weights @ right.T / items, axis=1, ddof=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high), items)


def binomial_se(share: float, items: int) -> float:
    """Standard error of an accuracy if every item were drawn anew: the yardstick of Std@Acc."""
    return math.sqrt(share * (1 - share) / items) if items else math.nan


def best_worst(
    correct_CP: NDArray[np.int8], item_P: NDArray[np.int64] | None = None
) -> tuple[Estimate, Estimate]:
    """Best and worst possible accuracy: right in any setting, right in all (arXiv 2408.04667).

    ``item_P`` is the item of each row when items have several rows: the intervals count items.
    """
    known = (correct_CP != UNKNOWN).all(axis=0)
    right = correct_CP == 1
    item_P = np.arange(len(known)) if item_P is None else item_P
    return (
        share_of_known(right.any(axis=0), known, item_P),
        share_of_known(right.all(axis=0), known, item_P),
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased estimate that at least one of k samples is right, from ``right`` of ``samples``.

    1 - C(samples - right, k) / C(samples, k) (Chen et al. 2021). Raises ValueError unless
    1 <= k <= samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k={k}: must be from 1 to {samples}")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p of McNemar's test for the flips between two settings; 1 without flips."""
    flips = only_a + only_b
    return 1.0 if flips == 0 else float(stats.binomtest(only_a, flips, 0.5).pvalue)


def item_flips(
    correct_a: NDArray[np.int8], correct_b: NDArray[np.int8], item_P: NDArray[np.int64]
) -> tuple[int, int]:
    """Items with more rows right in a than in b, and with fewer; rows with a verdict in both."""
    known = (correct_a != UNKNOWN) & (correct_b != UNKNOWN)
    turned = correct_a[known].astype(np.int64) - correct_b[known]
    net = np.bincount(item_P[known], weights=turned)
    return int((net > 0).sum()), int((net < 0).sum())


def flips(correct_a: NDArray[np.int8], correct_b: NDArray[np.int8]) -> tuple[int, int, int]:
    """Rows right only in a, right only in b, and rows with a verdict in both."""
    known = (correct_a != UNKNOWN) & (correct_b != UNKNOWN)
    only_a = int((known & (correct_a == 1) & (correct_b == 0)).sum())
    only_b = int((known & (correct_a == 0) & (correct_b == 1)).sum())
    return only_a, only_b, int(known.sum())
