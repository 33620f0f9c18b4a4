"""Intervals: known values, the Generator, and how often they cover the truth."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from nondet.metrics.accuracy import std_at_acc, std_over_items
from nondet.metrics.intervals import (
    by_item,
    clopper_pearson,
    largest_unseen,
    mean_over_items,
    needed,
    share_of_items,
    wilson,
)


@pytest.mark.parametrize(("count", "n"), [(0, 1), (1, 1), (0, 30), (30, 30), (7, 30), (499, 500)])
def test_shares_agree_with_other_implementations(count: int, n: int) -> None:
    low, high = proportion_confint(count, n, method="wilson")
    assert wilson(count, n)[:3] == pytest.approx((count / n, low, high), abs=1e-12)
    exact = stats.binomtest(count, n).proportion_ci(0.95, "exact")
    assert clopper_pearson(count, n)[1:3] == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_nothing_is_nan_and_not_zero() -> None:
    for estimate in (wilson(0, 0), clopper_pearson(0, 0)):
        assert math.isnan(estimate.value)
        assert estimate.n == 0
    rng = np.random.default_rng(0)
    assert mean_over_items(np.array([np.nan]), rng).n == 0
    one = mean_over_items(np.array([3.0, np.nan]), rng)
    assert (one.value, one.n) == (3.0, 1)
    assert math.isnan(one.low)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_items_are_no_certainty_about_others(value: float) -> None:
    """The bootstrap of equal values has no width: that is no interval of any level."""
    found = mean_over_items(np.full(30, value), np.random.default_rng(0))
    assert (found.value, found.n) == (value, 30)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_power_sentences() -> None:
    assert needed(0.1) == 29
    assert largest_unseen(29) <= 0.1 < largest_unseen(28)
    assert needed(0.01) == 299
    assert largest_unseen(0) == 1
    for rate in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="rate="):
            needed(rate)


def test_samples_of_an_item_are_averaged_first() -> None:
    values = np.array([1.0, 3.0, 5.0, np.nan])
    assert by_item(values, np.array([0, 0, 1, 1])).tolist() == [2.0, 5.0]
    hits = np.array([True, True, False, False])
    assert share_of_items(hits, np.arange(4)) == wilson(2, 4)
    assert share_of_items(hits, np.array([0, 0, 1, 1])) == wilson(1, 2)


def test_the_generator_decides_the_interval() -> None:
    values = np.random.default_rng(7).exponential(size=40)

    def drawn(seed: int) -> tuple[float, ...]:
        return tuple(mean_over_items(values, np.random.default_rng(seed)))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    # No draw may come from the global generator.
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    drawn(3)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_the_bootstrap_is_one_of_the_mean() -> None:
    values = np.random.default_rng(1).normal(10, 2, 200)
    got = mean_over_items(values, np.random.default_rng(0), resamples=20_000)
    half = 1.96 * values.std() / math.sqrt(200)
    assert got.low == pytest.approx(values.mean() - half, abs=0.02)
    assert got.high == pytest.approx(values.mean() + half, abs=0.02)


@cache
def coverage_of_share(n: int, share: float) -> float:
    """Exact coverage of Wilson's interval: a sum over all counts, no simulation."""
    found = [wilson(count, n) for count in range(n + 1)]
    inside = [one.low <= share <= one.high for one in found]
    return float(stats.binom.pmf(np.arange(n + 1), n, share)[inside].sum())


SHARES = np.linspace(0.05, 0.95, 37)


@pytest.mark.parametrize("n", [30, 100, 500])
def test_wilson_covers_on_average_over_shares(n: int) -> None:
    assert 0.93 <= np.mean([coverage_of_share(n, share) for share in SHARES]) <= 0.97


def test_wilson_coverage_of_single_shares_is_known_to_leave_the_band() -> None:
    """What the report has to say: near 0 or 1, or with few items, one share can be off."""
    outside = {
        n: [
            round(float(share), 3)
            for share in SHARES
            if not 0.93 <= coverage_of_share(n, share) <= 0.97
        ]
        for n in (30, 100, 500)
    }
    assert len(outside[500]) <= 1
    assert len(outside[100]) <= 4
    assert all(0.88 <= coverage_of_share(30, share) <= 0.985 for share in outside[30])


def accuracies(
    rng: np.random.Generator, studies: int, settings: int, items: int
) -> tuple[np.ndarray, float]:
    """Correctness (studies, settings, items) and the true spread: each item is right with its own
    probability in every setting, as when rounding noise draws the answer anew."""
    probability = rng.choice([0.02, 0.3, 0.5, 0.8, 1.0], items)
    truth = math.sqrt((probability * (1 - probability)).sum()) / items
    return (rng.random((studies, settings, items)) < probability).astype(np.int8), truth


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "items"), [(12, 30), (12, 500), (6, 200), (4, 200)])
def test_std_at_acc_covers(settings: int, items: int) -> None:
    rng = np.random.default_rng(11)
    correct, truth = accuracies(rng, 4000, settings, items)
    found = [std_at_acc(study) for study in correct]
    share = np.mean([one.low <= truth <= one.high for one in found])
    assert 0.93 <= share <= 0.97, share


def test_std_at_acc_covers_quickly() -> None:
    correct, truth = accuracies(np.random.default_rng(11), 1000, 12, 100)
    found = [std_at_acc(study) for study in correct]
    # 1,000 studies: three standard errors of a share of 0.95 are 0.021.
    assert 0.929 <= np.mean([one.low <= truth <= one.high for one in found]) <= 0.971


def test_the_bootstrap_over_items_is_not_used_for_the_spread_because_it_sits_too_high() -> None:
    correct, truth = accuracies(np.random.default_rng(5), 200, 12, 100)
    rng = np.random.default_rng(0)
    share = np.mean([std_over_items(one, rng, 200).low <= truth for one in correct])
    assert share < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "items"), [("skewed", 30), ("skewed", 100), ("normal", 30), ("normal", 100)]
)
def test_means_over_items_cover(name: str, items: int) -> None:
    rng = np.random.default_rng(2)
    hits, studies = 0, 3000
    for _ in range(studies):
        if name == "normal":
            values, truth = rng.normal(5, 2, items), 5.0
        else:  # with many zeros, as spreads of lengths are
            values = rng.exponential(100, items) * (rng.random(items) < 0.7)
            truth = 70.0
        got = mean_over_items(values, rng, resamples=600)
        hits += got.low <= truth <= got.high
    # Skewed values with few items are the known exception, which an analysis says in its notes.
    low, high = (0.91, 0.93) if (name, items) == ("skewed", 30) else (0.93, 0.97)
    # 3,000 studies: two standard errors are 0.008.
    assert low - 0.008 <= hits / studies <= high + 0.008, hits / studies


def test_equal_accuracies_still_have_an_upper_bound() -> None:
    same = np.ones((12, 30), dtype=np.int8)
    got = std_at_acc(same)
    assert (got.value, got.low) == (0.0, 0.0)
    assert 0 < got.high < 0.05
    assert std_at_acc(np.ones((12, 3000), dtype=np.int8)).high < got.high / 50
    assert math.isnan(std_at_acc(same[:1]).value)
    one_item = std_at_acc(np.array([[1], [0], [1]], dtype=np.int8))
    assert one_item.value == pytest.approx(np.std([1, 0, 1], ddof=1))
    assert one_item.high <= math.sqrt(3 / 2) / 2 + 1e-12
