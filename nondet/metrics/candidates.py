"""Stored candidates at one position: near ties, and how far two runs' candidates are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def near_ties(logprobs_TK: NDArray[Any], delta: float) -> NDArray[np.int64]:
    """Number of candidates within ``delta`` nats of the best one, the best included, (T,).

    1 means a clear decision. At most K, since only K candidates are stored. NaN candidates do not
    count; positions without any give 0. Source: near-tie count N(delta), arXiv 2605.30218.
    """
    values = np.asarray(logprobs_TK, dtype=np.float64)
    known = ~np.isnan(values)
    best = np.where(known, values, -np.inf).max(axis=1, keepdims=True)
    return np.asarray((known & (values >= best - delta)).sum(axis=1), dtype=np.int64)


def probability_divergence(
    ids_a: NDArray[np.int32],
    logprobs_a: NDArray[Any],
    ids_b: NDArray[np.int32],
    logprobs_b: NDArray[Any],
) -> NDArray[np.float64]:
    """Largest difference in probability of a candidate that both runs store, (T,).

    Inputs are (T, K), id -1 or NaN where there is none; NaN where the runs share no candidate.
    Source: "maximum probability divergence", arXiv 2511.17826, for two settings; its mean over
    positions is the published number.
    """
    same = (ids_a[:, :, None] == ids_b[:, None, :]) & (ids_a[:, :, None] >= 0)
    p = np.exp(np.asarray(logprobs_a, dtype=np.float64))[:, :, None]
    q = np.exp(np.asarray(logprobs_b, dtype=np.float64))[:, None, :]
    gap = np.where(same & ~np.isnan(p) & ~np.isnan(q), np.abs(p - q), -np.inf)
    largest = gap.max(axis=(1, 2), initial=-np.inf)
    return np.where(np.isneginf(largest), np.nan, largest)


def explained_by_noise(gap: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Whether rounding noise can explain a flip: 1, 0, or NaN where either is not known.

    ``gap``: log-probability gap of the two best at the fork; ``noise``: the largest change of a
    log-probability seen before it. Two candidates can only change places if the gap is at most
    twice the change of one, so a larger gap (0) points to a bug or to noise that grew suddenly.
    """
    known = ~np.isnan(gap) & ~np.isnan(noise)
    return np.where(known, (gap <= 2 * noise).astype(np.float64), np.nan)
