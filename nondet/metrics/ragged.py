"""Ragged arrays: one flat array of values and the offsets of its rows, zero-copy from Arrow.

Axes in names: C settings (or runs), R repeats, P items (rows of a run), T tokens, K candidates.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Above this many bytes a Spill writes to a temporary file.
MEMORY_LIMIT = 256 * 2**20


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length. ``values``: flat (sum of lengths,); ``offsets``: int64 (P + 1,)."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of every row, int64 (P,)."""
        return np.diff(self.offsets)

    def row(self, index: int) -> NDArray[Any]:
        """One row, a view."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def rows(self) -> list[NDArray[Any]]:
        """All rows, views."""
        return [self.row(index) for index in range(len(self))]


def from_rows(rows: Sequence[Any], dtype: Any) -> Ragged:
    """Ragged array of a sequence of one-dimensional rows (lists or arrays)."""
    arrays = [np.asarray(row, dtype=dtype) for row in rows]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    values = np.concatenate(arrays) if arrays else np.empty(0, dtype)
    return Ragged(values.astype(dtype, copy=False), offsets)


def from_arrow(column: Any) -> Ragged:
    """Ragged view of an Arrow list column; null rows are empty, null values NaN.

    Nothing is copied when the column is one chunk without nulls. Raises ValueError for a null
    in an integer column.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    offsets = np.asarray(array.offsets).astype(np.int64)
    if len(array) == 0:
        offsets = np.zeros(1, dtype=np.int64)
    values = array.values
    if values.null_count and pa.types.is_integer(values.type):
        raise ValueError("null in a list of token ids")
    return Ragged(values.to_numpy(zero_copy_only=False), offsets)


class Spill:
    """Ragged columns of many runs, added run by run and read back item by item.

    Small data stay in memory; beyond ``memory_limit`` bytes they go to an unnamed temporary file,
    so that the memory in use does not grow with the number of runs.
    """

    def __init__(self, memory_limit: int = MEMORY_LIMIT) -> None:
        self.free = memory_limit
        self.kept: list[Ragged | None] = []
        self.starts: list[NDArray[np.int64]] = []
        self.dtypes: list[np.dtype[Any]] = []
        self.file: Any = None
        self.end = 0

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.file is not None:
            self.file.close()
        self.kept.clear()

    def add(self, column: Ragged) -> None:
        """Keep the column of the next run."""
        values = np.ascontiguousarray(column.values[column.offsets[0] : column.offsets[-1]])
        self.dtypes.append(values.dtype)
        self.free -= values.nbytes
        if self.free >= 0:
            self.kept.append(column)
            self.starts.append(column.offsets)
            return
        if self.file is None:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self.file.write(values.data)
        self.kept.append(None)
        relative = (column.offsets - column.offsets[0]) * values.itemsize
        self.starts.append(relative + self.end)
        self.end += values.nbytes

    def flush(self) -> None:
        """Make everything added readable by ``row``."""
        if self.file is not None:
            self.file.flush()

    def row(self, run: int, item: int) -> NDArray[Any]:
        """The row of one item in one run, in the order in which runs were added."""
        kept = self.kept[run]
        if kept is not None:
            return kept.row(item)
        start, stop = self.starts[run][item], self.starts[run][item + 1]
        data = os.pread(self.file.fileno(), int(stop - start), int(start))
        return np.frombuffer(data, self.dtypes[run])
