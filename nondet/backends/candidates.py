"""Candidate tables: what an engine gives for each position, in the order of the contract."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# The definition every backend shares; runs are compared only where it is the same.
RAW_LOGPROBS = "raw logits, log_softmax in float32"


def candidate_table(
    ids_T: Sequence[Sequence[int]], logprobs_T: Sequence[Sequence[float]], top_k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The K best candidates at each of T positions: int32 and float32 (T, K).

    ids_T, logprobs_T: for each position the candidates an engine gave, in any order and with
    doubles (engines list the emitted token beside the best K). Sorted by falling log-probability,
    ties by rising id; missing ones are id -1 and NaN. NaN log-probabilities count as not given.
    """
    widths = {len(row) for row in ids_T}
    if widths == {top_k}:
        return sorted_candidates(np.asarray(ids_T, np.int32), np.asarray(logprobs_T, np.float32))
    ids = np.full((len(ids_T), top_k), -1, np.int32)
    logprobs = np.full((len(ids_T), top_k), np.nan, np.float32)
    for row, (row_ids, row_logprobs) in enumerate(zip(ids_T, logprobs_T, strict=True)):
        given = dict(zip(row_ids, row_logprobs, strict=True))
        best = sorted((-lp, token) for token, lp in given.items() if lp == lp)[:top_k]
        for rank, (negative, token) in enumerate(best):
            ids[row, rank], logprobs[row, rank] = token, -negative
    return ids, logprobs


def sorted_candidates(
    ids_TK: NDArray[np.int32], logprobs_TK: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The same for full tables without doubles; NaN goes last, with id -1."""
    ids_TK = np.where(np.isnan(logprobs_TK), -1, ids_TK).astype(np.int32)
    order = np.lexsort((ids_TK, -logprobs_TK), axis=-1)
    return (
        np.take_along_axis(ids_TK, order, axis=-1),
        np.take_along_axis(logprobs_TK, order, axis=-1),
    )
