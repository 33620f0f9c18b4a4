"""Survival of agreement against statsmodels, plain loops and by hand."""

from __future__ import annotations

import naive_metrics as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.duration.survfunc import CumIncidenceRight, SurvfuncRight

from nondet.metrics.survival import CENSORED, DIVERGED, FINISHED, agreement_curve, at_positions

PARAMETERS = [(0, 30, 1), (1, 200, 3), (2, 500, 60), (3, 1000, 4), (4, 7, 2)]


def sample(seed: int, items: int, spread: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 40 * spread, items), rng.integers(0, 3, items)


@pytest.mark.parametrize(("seed", "items", "spread"), PARAMETERS)
def test_kaplan_meier_agrees_with_statsmodels(seed: int, items: int, spread: int) -> None:
    time, status = sample(seed, items, spread)
    curve = agreement_curve(time, status, np.random.default_rng(0), resamples=0)
    reference = SurvfuncRight(time, (status == DIVERGED).astype(int))
    events = np.isin(curve.time, reference.surv_times)
    assert curve.time[events].tolist() == reference.surv_times.tolist()
    np.testing.assert_allclose(curve.survival[events], reference.surv_prob, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(curve.at_risk[events], reference.n_risk)


# The reference divides by zero in its variance, which is not used here.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("seed", "items", "spread"), PARAMETERS)
def test_cumulative_incidence_agrees_with_statsmodels(seed: int, items: int, spread: int) -> None:
    time, status = sample(seed, items, spread)
    curve = agreement_curve(time, status, np.random.default_rng(0), resamples=0)
    # statsmodels starts at time 1, so positions are moved by one.
    reference = CumIncidenceRight(time + 1, status)
    place = np.searchsorted(curve.time + 1, reference.times)
    assert (curve.time[place] + 1).tolist() == reference.times.tolist()
    for got, expected in ((curve.incidence, 0), (curve.finished, 1)):
        np.testing.assert_allclose(got[place], reference.cinc[expected], rtol=0, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=12))
def test_curves_agree_with_plain_loops(rows: list[tuple[int, int]]) -> None:
    time = np.array([t for t, _ in rows], dtype=np.int64)
    status = np.array([s for _, s in rows], dtype=np.int64)
    curve = agreement_curve(time, status, np.random.default_rng(0), resamples=0)
    expected = np.array(naive.kaplan_meier(time.tolist(), status.tolist()))
    got = [curve.time, curve.at_risk, curve.events, curve.survival, curve.incidence]
    np.testing.assert_allclose(np.stack([*got, curve.finished], axis=1), expected, atol=1e-12)


def test_by_hand() -> None:
    # Five items: parted at 1 and at 3, cut at 1, identical to the end at 2, parted at 3.
    time = np.array([1, 3, 1, 2, 3])
    status = np.array([DIVERGED, DIVERGED, CENSORED, FINISHED, DIVERGED])
    curve = agreement_curve(time, status, np.random.default_rng(0), resamples=0)
    assert curve.time.tolist() == [1, 2, 3]
    assert curve.at_risk.tolist() == [5, 3, 2]
    np.testing.assert_allclose(curve.survival, [0.8, 0.8, 0.0])
    np.testing.assert_allclose(curve.incidence, [0.2, 0.2, 0.2 + 0.8 * 2 / 3])
    np.testing.assert_allclose(curve.finished, [0, 0.8 / 3, 0.8 / 3])
    assert at_positions(curve, np.array([0, 1, 2, 9])).tolist() == [1.0, 0.8, 0.8, 0.0]


def test_nothing_and_nobody() -> None:
    rng = np.random.default_rng(0)
    none = agreement_curve(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), rng)
    assert len(none.time) == 0
    assert at_positions(none, np.array([0, 5])).tolist() == [1.0, 1.0]
    still = agreement_curve(np.full(30, 9), np.full(30, CENSORED), rng)
    assert still.survival.tolist() == [1.0]
    # 0 of 30 seen: the exact bound, not a band of no width.
    assert still.low[0] == pytest.approx(0.025 ** (1 / 30))
    assert still.incidence_high[0] == pytest.approx(1 - 0.025 ** (1 / 30))
    gone = agreement_curve(np.zeros(30, dtype=np.int64), np.full(30, DIVERGED), rng)
    assert (gone.time.tolist(), gone.survival.tolist()) == ([0], [0.0])


def test_the_generator_decides_the_band() -> None:
    time, status = sample(5, 60, 2)

    def band(seed: int) -> list[float]:
        return agreement_curve(time, status, np.random.default_rng(seed)).low.tolist()

    assert band(1) == band(1)
    assert band(1) != band(2)


def test_samples_of_one_item_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    time, status = np.repeat([3, 9], 20), np.repeat([DIVERGED, CENSORED], 20)
    together = agreement_curve(time, status, rng, item_P=np.repeat([0, 1], 20))
    apart = agreement_curve(time, status, rng)
    assert together.low[0] < 0.1 < 0.9 < together.high[0]
    assert 0.3 < apart.low[0] < apart.high[0] < 0.7


@pytest.mark.filterwarnings("error")
def test_bands_hold_their_curves_without_warnings() -> None:
    for seed in range(40):
        time, status = sample(seed, 1 + seed, 1)
        curve = agreement_curve(time, status, np.random.default_rng(seed), resamples=50)
        for middle, low, high in (
            (curve.survival, curve.low, curve.high),
            (curve.incidence, curve.incidence_low, curve.incidence_high),
        ):
            inside = (middle > 1e-12) & (middle < 1 - 1e-12)
            assert (low[inside] <= middle[inside]).all()
            assert (middle[inside] <= high[inside]).all()
            assert ((low >= -1e-12) & (high <= 1 + 1e-12)).all()


def test_a_curve_at_zero_has_an_exact_band_and_not_one_of_no_width() -> None:
    rng = np.random.default_rng(0)
    bound = 1 - 0.025 ** (1 / 30)
    for time in (np.zeros(30, dtype=np.int64), np.arange(30)):
        gone = agreement_curve(time, np.full(30, DIVERGED), rng)
        assert (gone.low[-1], gone.high[-1]) == (0, pytest.approx(bound))
        assert (gone.incidence_low[-1], gone.incidence_high[-1]) == (pytest.approx(1 - bound), 1)
    # Twenty of thirty cut first: the last ten say less than thirty would.
    time, status = np.repeat([1, 5], [20, 10]), np.repeat([CENSORED, DIVERGED], [20, 10])
    left = agreement_curve(time, status, rng)
    assert left.high[-1] == pytest.approx(1 - 0.025 ** (1 / 10))


def test_those_who_ended_identical_count_for_the_incidence() -> None:
    ended = agreement_curve(np.arange(30), np.full(30, FINISHED), np.random.default_rng(0))
    # 0 of 30 have parted, whoever ended first.
    np.testing.assert_allclose(ended.incidence_high, 1 - 0.025 ** (1 / 30))
    # The hazard of a token is known from those who still say one.
    np.testing.assert_allclose(ended.low, 0.025 ** (1 / np.arange(30, 0, -1)))
    cut = agreement_curve(np.arange(30), np.full(30, CENSORED), np.random.default_rng(0))
    np.testing.assert_allclose(cut.incidence_high, 1 - 0.025 ** (1 / np.arange(30, 0, -1)))


def test_exact_bands_count_items_and_not_samples() -> None:
    item_P = np.repeat(np.arange(10), 16)
    for status in (CENSORED, DIVERGED):
        curve = agreement_curve(
            np.full(160, 9), np.full(160, status), np.random.default_rng(0), item_P=item_P
        )
        assert curve.high[0] - curve.low[0] == pytest.approx(1 - 0.025 ** (1 / 10))
        assert curve.incidence_high[0] - curve.incidence_low[0] == pytest.approx(
            1 - 0.025 ** (1 / 10)
        )


def test_a_single_item_with_samples_has_no_band_in_between() -> None:
    curve = agreement_curve(
        np.array([3, 9, 9]),
        np.array([DIVERGED, FINISHED, FINISHED]),
        np.random.default_rng(0),
        item_P=np.zeros(3, dtype=np.int64),
    )
    assert curve.survival[0] == pytest.approx(2 / 3)
    assert np.isnan([curve.low[0], curve.high[0], curve.incidence_low[0]]).all()
