"""Spread of response lengths over settings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nondet.metrics.intervals import Estimate, by_item, mean_over_items


def std_of_lengths(lengths_CP: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sample standard deviation (ddof 1) over settings of each item's token count, (P,).

    NaN with fewer than two settings; exactly 0 where all lengths are equal.
    """
    settings, items = lengths_CP.shape
    if settings < 2:
        return np.full(items, np.nan)
    # Integers stay exact: lengths below 2**20 and up to 2**20 settings fit into 64 bits.
    total = lengths_CP.sum(axis=0)
    squares = (lengths_CP * lengths_CP).sum(axis=0)
    spread = settings * squares - total * total
    return np.asarray(np.sqrt(spread / (settings * (settings - 1))))


def avg_std_output_length(
    lengths_CP: NDArray[np.int64],
    item_P: NDArray[np.int64],
    rng: np.random.Generator,
) -> Estimate:
    """Avg_Std@Output_Length (Yuan et al. 2025), in tokens: mean over items of the spread over
    settings, bootstrap over items. Responses cut at the token limit all have its length, so the
    share of cut responses belongs beside this number."""
    return mean_over_items(by_item(std_of_lengths(lengths_CP), item_P), rng)
