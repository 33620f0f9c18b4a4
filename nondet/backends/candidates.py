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
    ids = np.full((len(ids_T), top_k), -1, np.int32)
    logprobs = np.full((len(ids_T), top_k), np.nan, np.float32)
    for row, (row_ids, row_logprobs) in enumerate(zip(ids_T, logprobs_T, strict=True)):
        given = dict(zip(row_ids, row_logprobs, strict=True))
        best = sorted((-lp, token) for token, lp in given.items() if lp == lp)[:top_k]
        for rank, (negative, token) in enumerate(best):
            ids[row, rank], logprobs[row, rank] = token, -negative
    return ids, logprobs
