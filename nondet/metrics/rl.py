"""Sampling against training: how far two engines' log-probabilities of the same tokens are apart.

In reinforcement learning one engine samples and another computes the gradient. With
d = log p_train - log p_sample of each sampled token and the ratio r = exp(d):

k1 = mean(-d), k2 = mean(d * d) / 2, k3 = mean(r - 1 - d): three estimates of
    KL(sample || train) in nats a token from samples of the sampling engine (J. Schulman,
    "Approximating KL divergence", 2020); k3 is never negative.
effective sample size = (sum w)^2 / (n * sum w^2), the share of n samples that importance weights
    w leave (Kish 1965): of tokens with w = r, of responses with w = product of r.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nondet.metrics.probability import sequence_log_ratio, signed_differences


class Mismatch(NamedTuple):
    """Sampling against training over n tokens of ``responses`` responses; NaN without tokens."""

    tokens: int
    responses: int
    mean_abs_dlogprob: float
    max_abs_dlogprob: float
    max_abs_dprob: float
    k1: float
    k2: float
    k3: float
    ess_tokens: float
    ess_responses: float
    max_abs_sequence_log_ratio: float
    mean_truncated_ratio: float


def effective_share(log_weights: NDArray[np.float64]) -> float:
    """Effective sample size as a share of the samples, from log weights, without overflow."""
    if not log_weights.size:
        return float("nan")
    top = log_weights.max()
    if not np.isfinite(top):
        return float("nan")
    weights = np.exp(log_weights - top)
    return float(weights.sum() ** 2 / (log_weights.size * (weights * weights).sum()))


def mismatch(
    sampled: Sequence[NDArray[np.float64]],
    trained: Sequence[NDArray[np.float64]],
    truncate: float = 2.0,
) -> Mismatch:
    """Sampling-against-training differences of the same tokens.

    Args:
        sampled: log-probabilities from the sampling engine, one array a response.
        trained: those of the training engine for the same tokens. Positions where either is NaN
            are left out.
        truncate: cap of the importance ratio (truncated importance sampling).
    """
    gaps = [signed_differences(a, b) for a, b in zip(sampled, trained, strict=True)]
    d = np.concatenate(gaps) if gaps else np.empty(0)
    p = np.concatenate([np.exp(a) for a in sampled]) if gaps else d
    q = np.concatenate([np.exp(b) for b in trained]) if gaps else d
    known = ~np.isnan(d)
    d, p, q = d[known], p[known], q[known]
    ratios = np.array(
        [
            sequence_log_ratio(a, b)
            for a, b, gap in zip(sampled, trained, gaps, strict=True)
            if (~np.isnan(gap)).any()
        ]
    )
    if not d.size:
        nan = float("nan")
        return Mismatch(0, 0, *(nan,) * 10)
    # A token that the sampling engine rules out has an infinite ratio, and so an infinite k3.
    with np.errstate(over="ignore", invalid="ignore"):
        r = np.exp(d)
        k3 = np.where(np.isposinf(d), np.inf, np.maximum(np.expm1(d) - d, 0))
    return Mismatch(
        tokens=int(d.size),
        responses=int(ratios.size),
        mean_abs_dlogprob=float(np.abs(d).mean()),
        max_abs_dlogprob=float(np.abs(d).max()),
        max_abs_dprob=float(np.abs(p - q).max()),
        k1=float(-d.mean()),
        k2=float((d * d).mean() / 2),
        k3=float(k3.mean()),
        ess_tokens=effective_share(d),
        ess_responses=effective_share(ratios),
        max_abs_sequence_log_ratio=float(np.abs(ratios).max()),
        mean_truncated_ratio=float(np.minimum(r, truncate).mean()),
    )
