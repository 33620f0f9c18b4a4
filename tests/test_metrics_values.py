"""Accuracy, length, probability, agreement, attribution: against plain loops and by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import naive_metrics as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar

from nondet.metrics.accuracy import (
    accuracy,
    best_worst,
    flips,
    mcnemar,
    pass_at_k,
    std_at_acc,
    std_of_counts,
)
from nondet.metrics.agreement import answers_agree
from nondet.metrics.attribution import one_factor_pairs
from nondet.metrics.candidates import explained_by_noise, near_ties, probability_divergence
from nondet.metrics.length import std_of_lengths
from nondet.metrics.probability import (
    absolute_differences,
    sequence_log_ratio,
    std_of_probability,
    sum_of_differences,
    top_k_kl,
    top_two_gap,
)
from nondet.metrics.rl import effective_share, mismatch

INF = math.inf
LOGPROB = st.one_of(st.floats(-30, 0, width=32), st.sampled_from([0.0, -INF, math.nan, -0.5, -0.5]))


def close(got: float, expected: float | None) -> bool:
    if expected is None or math.isnan(expected):
        return math.isnan(got)
    return got == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=13), st.integers(30, 500))
def test_std_of_counts(counts: list[int], n: int) -> None:
    expected = naive.std([Fraction(count, n) for count in counts])
    got = std_of_counts(counts, n)
    assert close(got, expected)
    assert (got == 0) == (len(counts) > 1 and len(set(counts)) == 1)


@pytest.mark.parametrize(("count", "n", "settings_"), [(11, 30, 12), (3, 30, 12), (1, 3, 7)])
def test_equal_accuracies_have_a_spread_of_exactly_zero(count, n, settings_) -> None:
    assert np.std([count / n] * 12, ddof=1) >= 0  # 5.8e-17 for 11 of 30: the published dust
    assert std_of_counts([count] * settings_, n) == 0.0


matrices = st.integers(1, 5).flatmap(
    lambda runs: st.lists(
        st.lists(st.integers(-1, 1), min_size=runs, max_size=runs), min_size=1, max_size=8
    )
)


@settings(max_examples=200, deadline=None)
@given(matrices)
def test_accuracy_best_worst_and_flips(by_item: list[list[int]]) -> None:
    correct = np.array(by_item, dtype=np.int8).T
    known = [row for row in by_item if -1 not in row]
    best, worst = best_worst(correct)
    assert best.n == worst.n == len(known)
    if known:
        assert best.value == sum(1 in row for row in known) / len(known)
        assert worst.value == sum(0 not in row for row in known) / len(known)
        shares = [Fraction(sum(column), len(known)) for column in zip(*known, strict=True)]
        assert close(std_at_acc(correct).value, naive.std(shares))
    own = [row[0] for row in by_item if row[0] != -1]
    assert close(accuracy(correct[0]).value, sum(own) / len(own) if own else None)
    both = [(row[0], row[-1]) for row in by_item if row[0] != -1 and row[-1] != -1]
    expected = (both.count((1, 0)), both.count((0, 1)), len(both))
    assert flips(correct[0], correct[-1]) == expected


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (3, 9), (9, 3), (10, 10), (0, 12)])
def test_mcnemar_agrees_with_statsmodels(a: int, b: int) -> None:
    table = [[5, a], [b, 7]]
    assert mcnemar(a, b) == pytest.approx(reference_mcnemar(table, exact=True).pvalue, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda runs: st.lists(
            st.lists(st.integers(0, 32768), min_size=runs, max_size=runs), min_size=1, max_size=6
        )
    )
)
def test_length_spread(by_item: list[list[int]]) -> None:
    got = std_of_lengths(np.array(by_item, dtype=np.int64).T)
    for value, lengths in zip(got, by_item, strict=True):
        assert close(float(value), naive.std(lengths))
        assert len(set(lengths)) > 1 or len(lengths) < 2 or value == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(LOGPROB, LOGPROB), max_size=8))
def test_differences_of_logprobs(pairs: list[tuple[float, float]]) -> None:
    a = np.array([one for one, _ in pairs], dtype=np.float64)
    b = np.array([two for _, two in pairs], dtype=np.float64)
    expected = [naive.gap(one, two) for one, two in pairs]
    got = absolute_differences(a, b)
    assert all(close(float(g), e) for g, e in zip(got, expected, strict=True))
    known = [value for value in expected if value is not None]
    maximum, total, n, differ = sum_of_differences(got)
    assert n == len(known)
    assert differ == sum(value > 0 for value in known)
    assert maximum == pytest.approx(max(known, default=0.0))
    assert total == pytest.approx(math.fsum(known))
    signed = [
        0.0 if one == two else two - one
        for one, two in pairs
        if not math.isnan(one) and not math.isnan(two)
    ]
    if not (INF in signed and -INF in signed):
        assert sequence_log_ratio(a, b) == pytest.approx(sum(signed), abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda runs: st.lists(
            st.lists(LOGPROB, min_size=runs, max_size=runs), min_size=1, max_size=6
        )
    )
)
def test_spread_of_the_top_probability(by_position: list[list[float]]) -> None:
    got = std_of_probability(np.array(by_position, dtype=np.float64).T)
    for value, column in zip(got, by_position, strict=True):
        if any(math.isnan(entry) for entry in column):
            assert math.isnan(value)
        else:
            assert close(float(value), naive.std([math.exp(entry) for entry in column]))


CANDIDATES = st.dictionaries(st.integers(0, 6), st.floats(-8, -1.7), min_size=3, max_size=3)


@settings(max_examples=200, deadline=None)
@given(CANDIDATES, CANDIDATES)
def test_kl_from_candidates(a: dict[int, float], b: dict[int, float]) -> None:
    def arrays(row: dict[int, float]):
        return np.array([list(row)], dtype=np.int32), np.array([list(row.values())])

    assert close(float(top_k_kl(*arrays(a), *arrays(b))[0]), naive.kl(a, b))
    assert top_k_kl(*arrays(a), *arrays(a))[0] == 0


def test_kl_is_never_above_the_full_one() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        p, q = rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(30))
        ids_p, ids_q = np.argsort(-p)[:5], np.argsort(-q)[:5]
        got = top_k_kl(
            ids_p[None].astype(np.int32),
            np.log(p[ids_p])[None],
            ids_q[None].astype(np.int32),
            np.log(q[ids_q])[None],
        )[0]
        assert np.isnan(got) or 0 <= got <= (p * np.log(p / q)).sum() + 1e-12


def test_kl_without_candidates_is_unknown() -> None:
    ids = np.full((1, 5), -1, dtype=np.int32)
    assert np.isnan(top_k_kl(ids, np.full((1, 5), np.nan), ids, np.full((1, 5), np.nan))[0])


def test_gap_of_the_two_best() -> None:
    gap, log_gap = top_two_gap([math.log(0.5), math.log(0.3), math.log(0.1)])
    assert (gap, log_gap) == (pytest.approx(0.2), pytest.approx(math.log(5 / 3)))
    assert top_two_gap([-1.0, -1.0, -3.0]) == (0.0, 0.0)  # a tie
    assert top_two_gap([0.0, -INF]) == (1.0, INF)
    assert top_two_gap([-INF, -INF]) == (0.0, 0.0)
    assert all(math.isnan(value) for value in top_two_gap([-0.1, math.nan]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_reinforcement_learning_names(rows: list[list[tuple[float, float]]]) -> None:
    sampled = [np.array([a for a, _ in row]) for row in rows]
    trained = [np.array([b for _, b in row]) for row in rows]
    got = mismatch(sampled, trained)
    flat = [pair for row in rows for pair in row]
    d = [b - a for a, b in flat]
    assert got.tokens == len(flat)
    assert got.responses == len(rows)
    assert got.max_abs_dlogprob == pytest.approx(max(map(abs, d)))
    assert got.mean_abs_dlogprob == pytest.approx(naive.mean([abs(x) for x in d]))
    assert got.max_abs_dprob == pytest.approx(max(abs(math.exp(a) - math.exp(b)) for a, b in flat))
    assert got.k1 == pytest.approx(naive.mean([-x for x in d]))
    assert got.k2 == pytest.approx(naive.mean([x * x / 2 for x in d]))
    assert got.k3 == pytest.approx(naive.mean([math.exp(x) - 1 - x for x in d]), abs=1e-12)
    weights = [math.exp(x) for x in d]
    expected = sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))
    assert got.ess_tokens == pytest.approx(expected)
    sums = [sum(b - a for a, b in row) for row in rows]
    assert got.max_abs_sequence_log_ratio == pytest.approx(max(map(abs, sums)))
    assert got.mean_truncated_ratio == pytest.approx(naive.mean([min(w, 2.0) for w in weights]))


def test_equal_logprobs_have_no_mismatch() -> None:
    rows = [np.array([-1.0, -INF, 0.0]), np.array([-2.0])]
    got = mismatch(rows, rows)
    assert (got.max_abs_dlogprob, got.k1, got.k3, got.ess_tokens, got.ess_responses) == (
        0,
        0,
        0,
        1,
        1,
    )
    assert mismatch([], []).tokens == 0
    assert effective_share(np.array([1000.0, -1000.0])) == 0.5


def test_answers_without_an_answer_agree_with_each_other_only() -> None:
    answers = np.array([["4", "", "", "7"], ["4", "", "5", "7 "]], dtype=object)
    assert answers_agree(answers).tolist() == [True, True, False, False]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.booleans()), max_size=9))
def test_pairs_that_differ_in_one_factor(values) -> None:
    names = ("batch_size", "dtype", "tf32")
    rows = [dict(zip(names, value, strict=True)) for value in values]
    got = {name: sorted(pairs) for name, pairs in one_factor_pairs(rows, names).items()}
    assert got == {name: sorted(pairs) for name, pairs in naive.one_factor(rows, names).items()}


def test_near_ties_by_hand() -> None:
    rows = np.array([[-1.0, -1.0, -3.0], [-0.1, -2.6, -INF], [np.nan] * 3, [-INF, -INF, -INF]])
    assert near_ties(rows, 0.0).tolist() == [2, 1, 0, 3]
    assert near_ties(rows, 2.5).tolist() == [3, 2, 0, 3]


@settings(max_examples=200, deadline=None)
@given(CANDIDATES, CANDIDATES)
def test_probability_divergence(a: dict[int, float], b: dict[int, float]) -> None:
    def arrays(row: dict[int, float]):
        return np.array([list(row)], dtype=np.int32), np.array([list(row.values())])

    gaps = [abs(math.exp(a[key]) - math.exp(b[key])) for key in a if key in b]
    got = float(probability_divergence(*arrays(a), *arrays(b))[0])
    assert close(got, max(gaps) if gaps else None)


def test_a_flip_is_explained_by_noise_up_to_twice_its_size() -> None:
    gap = np.array([0.0, 0.02, 0.0201, np.nan, 0.1, INF])
    noise = np.array([0.0, 0.01, 0.01, 0.01, np.nan, 0.5])
    np.testing.assert_array_equal(explained_by_noise(gap, noise), [1, 1, 0, np.nan, np.nan, 0])


@pytest.mark.parametrize(("samples", "right"), [(1, 0), (1, 1), (5, 2), (8, 8), (6, 0)])
def test_pass_at_k_is_the_share_of_all_draws(samples: int, right: int) -> None:
    outcomes = [True] * right + [False] * (samples - right)
    for k in range(1, samples + 1):
        draws = list(combinations(outcomes, k))
        assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    with pytest.raises(ValueError, match="k=0"):
        pass_at_k(samples, right, 0)


@pytest.mark.filterwarnings("error")
def test_a_token_that_one_engine_rules_out() -> None:
    some, none = np.array([-1.0, -2.0]), np.array([-INF, -2.0])
    up, down = mismatch([none], [some]), mismatch([some], [none])
    assert (up.k1, up.k2, up.k3) == (-INF, INF, INF)
    assert (down.k1, down.k2, down.k3) == (INF, INF, INF)
    assert up.max_abs_dprob == down.max_abs_dprob == pytest.approx(math.exp(-1))
