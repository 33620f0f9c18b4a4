"""One set of numbers, many orders of adding them: how many different sums, and how wrong?

Two sets: eight numbers of very different size that add up to exactly 0, in all 40,320 orders, and
normal numbers in random orders. ``np.float64`` is IEEE double, as Python's own float.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nondet.invariant.bits import as_bits

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
          "fp64": torch.float64}  # fmt: skip
EIGHT = [sign * size for sign in (1.0, -1.0) for size in (1e-10, 1e-5, 1e-2, 1.0)]


def sequential(values: Tensor, orders: NDArray[np.int64]) -> Tensor:
    """Sums of ``values`` (N,), one number after the other, in each of the orders (R, N): (R,)."""
    index = torch.from_numpy(orders).to(values.device)
    total = values[index[:, 0]]
    for place in range(1, orders.shape[1]):
        total = total + values[index[:, place]]
    return total


def in_pieces(values: Tensor, pieces: int) -> Tensor:
    """The sum when ``pieces`` neighbouring parts are added first and their sums then, in order."""
    parts = [sequential(part, np.arange(len(part))[None]) for part in values.chunk(pieces)]
    return sequential(torch.cat(parts), np.arange(len(parts))[None])


def distinct(sums: Tensor) -> int:
    """How many different bit patterns; 0 and -0 count as one number here."""
    return len(torch.unique(as_bits(sums + 0.0)))


def row_of(what: str, dtype: str, values: Tensor, sums: Tensor, orders: str) -> dict[str, Any]:
    """One line: distinct sums, and the largest error against the exact sum of the same numbers,
    in units of the largest absolute number."""
    exact = math.fsum(values.double().tolist())
    errors = (sums.double() - exact).abs()
    scale = float(values.double().abs().max())
    return {
        "numbers": what,
        "count": len(values),
        "dtype": dtype,
        "orders": len(sums),
        "how": orders,
        "distinct": distinct(sums),
        "exact": exact,
        "lowest": float(sums.double().min()),
        "highest": float(sums.double().max()),
        "largest_error": float(errors.max()) / scale,
    }


def rows(
    device: str, count: int = 1000, orders: int = 10_000, seed: int = 0
) -> list[dict[str, Any]]:
    """The table: all dtypes, both sets of numbers, and sums in pieces."""
    rng = np.random.default_rng(seed)
    every = np.array(list(permutations(range(len(EIGHT)))), dtype=np.int64)
    normal = rng.standard_normal(count)
    shuffled = np.stack([rng.permutation(count) for _ in range(orders)])
    pieces = [2**power for power in range(int(math.log2(count)) + 1)]
    found = []
    for name, dtype in DTYPES.items():
        eight = torch.tensor(EIGHT, dtype=dtype, device=device)
        found.append(row_of("eight", name, eight, sequential(eight, every), "every order"))
        values = torch.tensor(normal, device=device).to(dtype)
        found.append(row_of("normal", name, values, sequential(values, shuffled), "random orders"))
        cut = torch.cat([in_pieces(values, number) for number in pieces])
        found.append(row_of("normal", name, values, cut, "in 1, 2, 4, ... pieces"))
    return found
