"""The published conventions of Yuan et al. (NeurIPS 2025), for tables beside theirs.

Differences from our own: accuracies are rounded to four decimals before the standard deviation;
Div_Index is averaged over the diverged items only and -1 where none diverged; shares are in
percent; the spread of the top-1 probability may include the position of the divergence, since the
paper's text is ambiguous there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nondet.metrics.prefix import NEVER
from nondet.metrics.probability import spread

# Rounding of accuracies in the published scorer.
DECIMALS = 4


def std_at_acc(accuracies: Sequence[float], decimals: int | None = DECIMALS) -> float:
    """Std@Acc as printed: ddof 1 over accuracies rounded to ``decimals``; exact 0 stays 0.

    The published numbers show floating-point dust (1e-17) where all accuracies are equal; that
    is not repeated here.
    """
    values = [round(value, decimals) if decimals is not None else value for value in accuracies]
    if len(values) < 2:
        return float("nan")
    return 0.0 if len(set(values)) == 1 else float(np.std(values, ddof=1))


def average_div_index(position_P: NDArray[np.int64]) -> float:
    """Table 8: mean first divergence over the items that diverged, -1 when none did."""
    diverged = position_P[position_P != NEVER]
    return float(diverged.mean()) if diverged.size else -1.0


def div_percent(position_P: NDArray[np.int64]) -> float:
    """Table 9: percent of items that diverged; NaN without items."""
    return 100 * float((position_P != NEVER).mean()) if position_P.size else float("nan")


def avg_std_top1_prob(
    top1_CT: Sequence[NDArray[Any]],
    position_P: NDArray[np.int64],
    *,
    inclusive: bool = False,
    pooled: bool = False,
    ddof: int = 1,
) -> float:
    """Avg_Std@top1_prob: spread over settings of the top-1 probability before Div_Index.

    Args:
        top1_CT: for each item the top-1 probabilities, (C, T), T at least the common length.
        position_P: Div_Index of each item, or NEVER (then all T positions count).
        inclusive: count the position of the divergence too.
        pooled: average over all positions at once instead of over items.
        ddof: of the standard deviation; the paper does not state it.
    """
    means: list[float] = []
    values: list[NDArray[np.float64]] = []
    for top1, position in zip(top1_CT, position_P, strict=True):
        end = top1.shape[1] if position == NEVER else int(position) + int(inclusive)
        found = spread(np.asarray(top1, dtype=np.float64)[:, :end], ddof)
        found = found[~np.isnan(found)]
        if found.size:
            means.append(float(found.mean()))
            values.append(found)
    if not means:
        return float("nan")
    return float(np.concatenate(values).mean()) if pooled else float(np.mean(means))


def paper_table(
    std: pd.DataFrame, length: pd.DataFrame, index: pd.DataFrame, top1: pd.DataFrame
) -> pd.DataFrame:
    """One row a group of settings in the paper's units, from the tables of an Analysis.

    Std@Acc and Div_Percent in percent, Div_Index -1 where nothing diverged, lengths in tokens,
    Avg_Std@top1_prob times 1e4.
    """
    return pd.DataFrame(
        {
            "group": std["group"],
            "settings": std["settings"],
            "items": index["items"],
            "std_at_acc": 100 * std["value"],
            "avg_std_output_length": length["value"],
            "avg_div_index": index["paper_value"],
            "div_percent": 100 * index["value"],
            "avg_std_top1_prob": 1e4 * top1["value"],
        }
    )
