"""CPU matrix products on blocks of a fixed number of rows, so that M never reaches the library.

oneDNN and MKL choose their kernel, its blocking and its split over threads from the whole shape.
Here the product of one block of BASE rows is one and the same call whatever the batch is, so a
row's bits depend on the row, the weights and the thread count alone. For 16-bit types that call is
``weights (N, K) @ rows^T``, which is faster for few rows (measured on AMX: at one row 0.6 to 0.7 of
the time of ``rows @ weights^T``). For FP32 and FP64 it is ``rows @ weights^T``: there blocks of 4
to 256 rows give equal bits (MKL, AVX-512), the other way round only those of 12 and more.

Larger and smaller blocks are faster for many and for very few rows. A size is used only after a
probe found its bits equal to those of BASE for this (N, K, dtype, layout, threads). The probe's
inputs cancel: every exact dot product is zero, what comes out is rounding error alone, and any
other order of additions shows.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor

from .bits import same_bits
from .original import original

BASE = 16
_MOST = 256
_SIZES = (1, 2, 4, 8, 32, 64, 128, _MOST)
# Above this many weights a probe costs more memory and time than larger blocks give back.
_PROBE_LIMIT = 1 << 27


class Shape(NamedTuple):
    """All that the choice of blocks may depend on; the number of rows is not in it."""

    n: int
    k: int
    dtype: torch.dtype
    layout: str  # of the weights (N, K): "rows", "columns" or "strided"
    biased: bool
    threads: int


_sizes: dict[Shape, tuple[int, ...]] = {}
_lock = threading.Lock()


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, beta: float = 1, alpha: float = 1,
            out: Tensor | None = None) -> Tensor:  # fmt: skip
    """``beta * bias + alpha * (a @ b)`` with rows that depend on nothing but themselves.

    Args:
        a: (M, K), any strides.
        b: (K, N), any strides, same dtype.
        bias: broadcasts to (M, N); not read when ``beta`` is 0.
        out: (M, N) to write to, any strides.
    """
    rows, k = a.shape
    n = b.shape[1]
    result = a.new_empty(rows, n) if out is None else out
    if rows == 0 or n == 0:
        return result
    if bias is not None:
        bias = bias.expand(rows, n)
    weights = b.t()
    shape = Shape(n, k, a.dtype, _layout(weights), bias is not None, torch.get_num_threads())
    sizes = proven_sizes(shape)
    if not sizes:
        for row in range(rows):
            part = None if bias is None else bias[row : row + 1]
            result[row : row + 1] = _block(weights, a[row : row + 1], BASE, part, beta, alpha)
        return result
    if rows <= sizes[-1] and out is None:
        size = next(size for size in sizes if size >= rows)
        if size <= 2 * rows or size == sizes[0]:
            return _block(weights, a, size, bias, beta, alpha).contiguous()
    for start, size in schedule(rows, sizes):
        stop = min(start + size, rows)
        part = None if bias is None else bias[start:stop]
        result[start:stop] = _block(weights, a[start:stop], size, part, beta, alpha)
    return result


def schedule(rows: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first row, block size) of each block; the last block may be partly padding.

    Sizes rise. Every row lands in some block of a proven size, so any schedule gives equal bits;
    this one wastes less than half of the last block.
    """
    plan = []
    start = 0
    while start < rows:
        left = rows - start
        size = next((size for size in sizes if size >= left), sizes[-1])
        smaller = [other for other in sizes if other <= left]
        if size >= 2 * left and smaller:
            size = smaller[-1]
        plan.append((start, size))
        start += size
    return plan


def proven_sizes(shape: Shape) -> tuple[int, ...]:
    """Block sizes whose bits equal BASE's, rising; empty if a row's place in the block matters."""
    found = _sizes.get(shape)
    if found is None:
        with _lock:
            found = _sizes.get(shape)
            if found is None:
                found = _sizes[shape] = _probe(shape)
    return found


def _layout(weights: Tensor) -> str:
    if weights.is_contiguous():
        return "rows"
    return "columns" if weights.t().is_contiguous() else "strided"


def _probe(shape: Shape) -> tuple[int, ...]:
    large = shape.n * shape.k > _PROBE_LIMIT
    if large or shape.layout == "strided" or not shape.dtype.is_floating_point:
        return (BASE,)
    rows, weights = cancelling(_MOST, shape)
    bias = torch.zeros(1, 1, dtype=shape.dtype) if shape.biased else None

    def blocked(size: int, source: Tensor) -> Tensor:
        parts = (source[i : i + size] for i in range(0, source.shape[0], size))
        return torch.cat([
            _block(weights, part, size, None if bias is None else bias.expand(size, shape.n), 1, 1)
            for part in parts
        ])  # fmt: skip

    few = rows[: 2 * BASE]
    base = blocked(BASE, few)
    if not same_bits(blocked(BASE, few.roll(5, 0)).roll(-5, 0), base):
        return ()
    full = torch.cat([base, blocked(BASE, rows[2 * BASE :])])
    proven = [size for size in _SIZES if same_bits(blocked(size, rows), full)]
    return tuple(sorted([*proven, BASE]))


def cancelling(rows: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """(rows, K) and weights (N, K) whose exact products are all zero (K odd: nearly all).

    Half of the weights repeat the other half with the sign turned, at places drawn once, and the
    rows repeat likewise. Exponents spread over 2^8 so that partial sums round at many sizes.
    """
    draw = torch.Generator().manual_seed(shape.n * 1_000_003 + shape.k)
    half = shape.k // 2
    places = torch.randperm(shape.k, generator=draw)
    one, other = places[:half], places[half : 2 * half]

    def values(count: int) -> Tensor:
        spread = torch.randint(-4, 5, (count, half), generator=draw)
        return torch.ldexp(torch.randn(count, half, generator=draw), spread).to(shape.dtype)

    x = torch.zeros(rows, shape.k, dtype=shape.dtype)
    x[:, one] = x[:, other] = values(rows)
    if shape.layout == "rows":
        weights = torch.zeros(shape.n, shape.k, dtype=shape.dtype)
    else:
        weights = torch.zeros(shape.k, shape.n, dtype=shape.dtype).t()
    drawn = values(shape.n)
    weights[:, one] = drawn
    weights[:, other] = -drawn
    return x, weights


def _block(weights: Tensor, rows: Tensor, size: int, bias: Tensor | None, beta: float,
           alpha: float) -> Tensor:  # fmt: skip
    """One block: ``rows`` (m <= size, K) padded with zero rows; returns (m, N).

    The rows are always copied to a buffer of their own: its alignment is then always the same.
    """
    count, k = rows.shape
    if count == size:
        block = rows.clone(memory_format=torch.contiguous_format)
    else:
        block = rows.new_zeros(size, k)
        block.narrow(0, 0, count).copy_(rows)
    turned = rows.dtype in (torch.bfloat16, torch.float16)
    left, right = (weights, block.t()) if turned else (block, weights.t())
    if bias is None:
        result: Tensor = original("mm")(left, right)
        if alpha != 1:
            result = result * alpha
    else:
        added = bias.new_zeros(size, weights.shape[0], dtype=rows.dtype)
        if beta != 0:
            added[:count] = bias
        if turned:
            added = added.t().contiguous()
        result = original("addmm")(added, left, right, beta=beta, alpha=alpha)
    return (result.t() if turned else result).narrow(0, 0, count)
