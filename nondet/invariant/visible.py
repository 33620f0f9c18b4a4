"""From an attention mask to pieces: query rows that see keys of one sequence, aligned to its start.

A row's result may depend only on the keys it sees, in their order. So padding is cut off here: keys
are counted from the first one a row sees, and their number is rounded up to whole blocks of KEYS,
from the row's own count alone. Prefill, chunks and decode of one position then agree on the shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Keys a row works on come in whole blocks of this many.
KEYS = 64


@dataclass(frozen=True)
class Piece:
    """Rows of one sequence that see keys from the same first key on, padded to the same length.

    batch: index of the sequence. rows: query positions, zero-based, rising.
    keys: (K,) key positions in the order they are used; the rows see prefixes of it.
    counts: for each row, how many of ``keys`` it sees (at least 1).
    padded: number of keys after rounding up, a multiple of KEYS.
    """

    batch: int
    rows: NDArray[np.int64]
    keys: slice | NDArray[np.int64]
    counts: NDArray[np.int64]
    padded: int


@dataclass(frozen=True)
class Visibility:
    """What a mask lets through; ``bias`` is added to the scores where it is not None."""

    pieces: tuple[Piece, ...]
    bias: Tensor | None


def from_mask(mask: Tensor | None, batch: int, queries: int, keys: int,
              causal: bool) -> Visibility:  # fmt: skip
    """Pieces of one attention call.

    Args:
        mask: None, bool (True: seen) or additive, (1 or batch, 1, queries, keys).
        causal: used without a mask: query t sees keys 0..t.
    """
    if mask is None:
        counts = np.arange(1, queries + 1) if causal else np.full(queries, keys)
        counts = np.broadcast_to(np.minimum(counts, keys), (batch, queries))
        return Visibility(_pieces(np.zeros_like(counts), counts, None), None)
    bias = None
    seen = mask
    if mask.dtype != torch.bool:
        # Libraries write "not seen" as -inf or as the lowest finite number.
        seen = mask > torch.finfo(mask.dtype).min / 2
        if bool((seen & (mask != 0)).any()):
            bias = mask
    seen = seen[:, 0].expand(batch, queries, keys)
    table = seen.detach().numpy()
    first = table.argmax(-1)
    counts = table.sum(-1)
    last = keys - 1 - table[:, :, ::-1].argmax(-1)
    holes = (counts > 0) & (last - first + 1 != counts)
    return Visibility(_pieces(first, counts, table if holes.any() else None), bias)


def _pieces(first: NDArray[np.int64], counts: NDArray[np.int64],
            table: NDArray[np.bool_] | None) -> tuple[Piece, ...]:  # fmt: skip
    """Group rows by sequence, first key and padded length; rows with holes stand alone."""
    found: list[Piece] = []
    padded = -(-counts // KEYS) * KEYS
    for index in range(counts.shape[0]):
        groups: dict[tuple[int, int], list[int]] = {}
        for row in range(counts.shape[1]):
            count = int(counts[index, row])
            start = int(first[index, row])
            if count == 0:
                continue
            if table is not None and not table[index, row, start : start + count].all():
                positions = np.flatnonzero(table[index, row])
                one = np.array([row])
                found.append(
                    Piece(index, one, positions, np.array([count]), int(padded[index, row]))
                )
            else:
                groups.setdefault((start, int(padded[index, row])), []).append(row)
        for (start, length), rows in groups.items():
            chosen = np.array(rows)
            seen = counts[index, chosen]
            keys = slice(start, start + int(seen.max()))
            found.append(Piece(index, chosen, keys, seen, length))
    return tuple(found)
