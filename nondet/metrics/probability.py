"""Differences of log-probabilities at positions where two or more runs agree on every token.

Log-probabilities are natural logs of the emitted tokens. At a common position that token is the
same in every run (under greedy decoding it is the top-1 token), so the values can be subtracted.
Two equal values differ by 0, also when both are -inf; NaN (the engine gave none) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Difference(NamedTuple):
    """Absolute log-probability differences over some positions, and how many were known."""

    maximum: float
    mean: float
    n: int
    differ: int


def absolute_differences(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """|a - b| in FP64; 0 for equal values, NaN where either is NaN."""
    return np.abs(signed_differences(a, b))


def sum_of_differences(gap: NDArray[np.float64]) -> tuple[float, float, int, int]:
    """Largest value, sum, number of known positions and of values above 0."""
    if not gap.size:
        return 0.0, 0.0, 0, 0
    total = float(gap.sum())
    if np.isnan(total):
        gap = gap[~np.isnan(gap)]
        if not gap.size:
            return 0.0, 0.0, 0, 0
        total = float(gap.sum())
    if total == 0:
        return 0.0, 0.0, gap.size, 0
    return float(gap.max()), total, gap.size, int(np.count_nonzero(gap))


def summary_of(maximum: float, total: float, n: int, differ: int) -> Difference:
    """Difference from accumulated parts; NaN when no position was known."""
    if n == 0:
        return Difference(np.nan, np.nan, 0, 0)
    return Difference(maximum, total / n, n, differ)


def std_of_probability(logprobs_CT: NDArray[np.float64], ddof: int = 1) -> NDArray[np.float64]:
    """Standard deviation over settings of the emitted token's probability, (T,).

    NaN where a setting has none; exactly 0 where all are equal.
    """
    return spread(np.exp(logprobs_CT), ddof)


def spread(values_CT: NDArray[np.float64], ddof: int) -> NDArray[np.float64]:
    """Standard deviation over the first axis, exactly 0 for equal values."""
    settings = len(values_CT)
    if settings <= ddof:
        return np.full(values_CT.shape[1], np.nan)
    # Distances from the first setting: equal values give 0 without dust, and nothing cancels.
    away = values_CT - values_CT[0]
    away -= away.sum(axis=0) / settings
    squares = np.einsum("ct,ct->t", away, away)
    return np.asarray(np.sqrt(squares / (settings - ddof)))


def signed_differences(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """b - a in FP64; 0 for equal values, NaN where either is NaN."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    # No warning is lost here: -inf minus -inf is put right below.
    with np.errstate(invalid="ignore"):
        return difference_rows(a, b)


def difference_rows(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """``signed_differences`` of FP64 rows, for loops that silence NumPy once around."""
    gap = b - a
    if np.isnan(gap.sum()):
        gap[a == b] = 0.0
    return gap


def sequence_log_ratio(a: NDArray[Any], b: NDArray[Any]) -> float:
    """log p_b / p_a of the common tokens of one response: sum of b - a, known positions only.

    Source: sequence-level log-probability ratio, arXiv 2510.26788. Two equal values add 0.
    """
    gap = signed_differences(a, b)
    return float(gap[~np.isnan(gap)].sum())


def top_k_kl(
    ids_a: NDArray[np.int32],
    logprobs_a: NDArray[Any],
    ids_b: NDArray[np.int32],
    logprobs_b: NDArray[Any],
) -> NDArray[np.float64]:
    """Kullback-Leibler divergence KL(a || b) in nats at each position from the stored candidates.

    Args:
        ids_a, logprobs_a: candidates of run a, (T, K); id -1 or NaN where there is none.
        ids_b, logprobs_b: candidates of run b at the same positions, (T, K).

    Returns:
        (T,) divergences over the candidates that both runs store, with everything else in one
        further class. Merging classes never raises a divergence, so this is a lower bound of the
        full one; 0 when all candidates agree. NaN where the runs share no candidate.
    """
    same = (ids_a[:, :, None] == ids_b[:, None, :]) & (ids_a[:, :, None] >= 0)
    log_a = np.asarray(logprobs_a, dtype=np.float64)
    log_b = np.where(same, np.asarray(logprobs_b, dtype=np.float64)[:, None, :], -np.inf)
    log_b = log_b.max(axis=2)
    shared = same.any(axis=2) & ~np.isnan(log_a) & ~np.isnan(log_b)
    p = np.where(shared, np.exp(np.where(shared, log_a, 0.0)), 0.0)
    q = np.where(shared, np.exp(np.where(shared, log_b, 0.0)), 0.0)
    # A candidate that a run rules out (-inf) adds nothing for p = 0 and infinity for q = 0.
    with np.errstate(invalid="ignore", divide="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)), 0.0)
        rest_p = np.maximum(1 - p.sum(axis=1), 0.0)
        rest_q = np.maximum(1 - q.sum(axis=1), 0.0)
        rest = np.where(rest_p > 0, rest_p * (np.log(rest_p) - np.log(rest_q)), 0.0)
    total = np.maximum(terms.sum(axis=1) + rest, 0.0)
    return np.where(shared.any(axis=1), total, np.nan)


def top_two_gap(logprobs_K: Sequence[float] | NDArray[Any]) -> tuple[float, float]:
    """Gap between the two largest candidates, as probability and as log-probability."""
    known = np.asarray(logprobs_K, dtype=np.float64)
    known = np.sort(known[~np.isnan(known)])[::-1]
    if known.size < 2:
        return np.nan, np.nan
    first, second = known[0], known[1]
    log_gap = 0.0 if first == second else float(first - second)
    return float(np.exp(first) - np.exp(second)), log_gap
