"""The candidates at the fork: how close were the two best when the responses parted?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nondet.metrics.probability import top_two_gap
from nondet.metrics.ragged import from_arrow
from nondet.runs import Run

# Rows decoded at a time: top candidates are the largest column of a run.
BATCH = 16
BUFFER = 2**20


def read_candidates(
    run: Run, lengths_P: NDArray[np.int64], wanted: Mapping[int, set[int]]
) -> dict[tuple[int, int], NDArray[Any]]:
    """Stored candidate log-probabilities, (K,), at some positions of some rows.

    Args:
        run: a complete run; its top_logprobs column is streamed, not held.
        lengths_P: token counts of its rows.
        wanted: positions by row. Positions beyond a response are left out of the answer.
    """
    found: dict[tuple[int, int], NDArray[Any]] = {}
    if not wanted:
        return found
    # Buffered: otherwise the whole compressed column is held.
    file = pq.ParquetFile(run.folder / "tokens.parquet", buffer_size=BUFFER)
    start, last = 0, max(wanted)
    for batch in file.iter_batches(BATCH, columns=["top_logprobs"]):
        rows = [row for row in range(start, start + len(batch)) if row in wanted]
        column = from_arrow(batch.column(0)) if rows else None
        for row in rows:
            assert column is not None
            flat = column.row(row - start)
            length = int(lengths_P[row])
            if not length or flat.size % length:
                continue
            table = flat.reshape(length, -1)
            for position in wanted[row]:
                if position < length:
                    found[row, position] = table[position].copy()
        start += len(batch)
        if start > last:
            break
    return found


def gaps_at(
    candidates: Mapping[tuple[int, int], NDArray[Any]], position_P: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Top-1 to top-2 gap at each row's position, as probability and log-probability, (P,) each.

    NaN where the row has no fork, no stored candidates, or ends there.
    """
    gap = np.full(len(position_P), np.nan)
    log_gap = np.full(len(position_P), np.nan)
    for row, position in enumerate(position_P):
        values = candidates.get((row, int(position)))
        if values is not None:
            gap[row], log_gap[row] = top_two_gap(values)
    return gap, log_gap
