"""CPU matrix products on blocks of a fixed number of rows, so that M never reaches the library.

oneDNN and MKL choose their kernel, its blocking and its split over threads from the whole shape.
Here the product of one block of BASE rows is one and the same call whatever the batch is, so a
row's bits depend on the row, the weights and the thread count alone. That call is
``rows @ weights^T``, torch's own, except for 16-bit types on a CPU with matrix units (AMX): there
it is ``weights (N, K) @ rows^T``, which is faster for few rows (at one row 0.6 to 0.7 of the time).
An x86 CPU without units for a 16-bit type multiplies it as FP32 and rounds once: libraries do the
same there, piece by piece, and take up to twice as long (``widened``).

Larger and smaller blocks are faster for many and for very few rows. A size is used only after a
probe found its bits equal to those of BASE for this (N, K, dtype, layout, threads). The probe's
inputs cancel: every exact dot product is zero, what comes out is rounding error alone, and any
other order of additions shows.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .bits import same_bits
from .cpu_units import has_matrix_units, widened
from .original import original

BASE = 16
# Of torch's allocations on the CPU, in bytes.
_ALIGNMENT = 64
_MOST = 256
_SIZES = (1, 2, 4, 8, BASE, 32, 64, 128, _MOST)
# Above this many weights a probe costs more memory and time than other blocks give back; above the
# smaller number only small blocks are tried (vocabularies, of which decoding asks a few rows).
_PROBE_LIMIT = 1 << 27
_LARGE, _MOST_LARGE = 1 << 22, 32
_LEAST_K = 32
# Weights that a probe draws; more are these again, for drawing a vocabulary takes a second.
_DISTINCT = 4096


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
    if rows == 0 or n == 0:
        return a.new_empty(rows, n) if out is None else out
    if widened(a.dtype):
        added = bias if bias is None else bias.float()
        wide = product(a.float(), b.float(), added, beta, alpha)
        return wide.to(a.dtype) if out is None else out.copy_(wide)
    if bias is not None:
        bias = bias.expand(rows, n)
    weights = b.t()
    shape = Shape(n, k, a.dtype, _layout(weights), bias is not None, torch.get_num_threads())
    sizes = proven_sizes(shape)
    if bias is not None and (beta, alpha) != (1, 1) and sizes:
        sizes = (BASE,)  # what a probe proves, it proves without factors
    if sizes and rows <= sizes[-1] and out is None:
        size = next(size for size in sizes if size >= rows)
        if size == sizes[0] or not _wasteful(size, rows):
            return _block(weights, a, size, bias, beta, alpha).contiguous()
    result = a.new_empty(rows, n) if out is None else out
    if not sizes:
        for row in range(rows):
            part = None if bias is None else bias[row : row + 1]
            result[row : row + 1] = _block(weights, a[row : row + 1], BASE, part, beta, alpha)
        return result
    for start, size in schedule(rows, sizes):
        stop = min(start + size, rows)
        part = None if bias is None else bias[start:stop]
        result[start:stop] = _block(weights, a[start:stop], size, part, beta, alpha)
    return result


def schedule(rows: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first row, block size) of each block; the last block may be partly padding.

    Sizes rise. Every row lands in some block of a proven size, so any schedule gives equal bits;
    this one fills the last block to three quarters where smaller ones allow it.
    """
    plan = []
    start = 0
    while start < rows:
        left = rows - start
        size = next((size for size in sizes if size >= left), sizes[-1])
        smaller = [other for other in sizes if other <= left]
        if smaller and _wasteful(size, left):
            size = smaller[-1]
        plan.append((start, size))
        start += size
    return plan


def _wasteful(size: int, rows: int) -> bool:
    """More than a quarter padding. Two rows cost little more than one, so up to 4 any will do."""
    return size > 4 and 4 * (size - rows) > rows


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
    # By the strides themselves: (1, K) may be contiguous either way and be multiplied differently.
    n, k = weights.shape
    if weights.stride() == (k, 1):
        return "rows"
    return "columns" if weights.stride() == (1, n) else "strided"


def _probe(shape: Shape) -> tuple[int, ...]:
    if unprobed(shape) or shape.layout == "strided" or not shape.dtype.is_floating_point:
        return (BASE,)
    rows, weights = cancelling(sizes_to_try(shape)[-1], shape)
    few = rows[: 2 * BASE]
    base = in_blocks(weights, few, BASE, shape.biased)
    if not same_bits(in_blocks(weights, few.roll(5, 0), BASE, shape.biased).roll(-5, 0), base):
        return ()
    full = torch.cat([base, in_blocks(weights, rows[2 * BASE :], BASE, shape.biased)])
    proven = [
        size
        for size in sizes_to_try(shape)
        if same_bits(in_blocks(weights, rows, size, shape.biased), full)
    ]
    return tuple(sorted({*proven, BASE}))


def unprobed(shape: Shape) -> bool:
    """Whether a probe costs more than it gives, or cancels too few pairs to show every order."""
    return shape.n * shape.k > _PROBE_LIMIT or shape.k < _LEAST_K


def sizes_to_try(shape: Shape) -> tuple[int, ...]:
    """Block sizes, rising; the last is a multiple of all."""
    most = _MOST_LARGE if shape.n * shape.k > _LARGE else _MOST
    return tuple(size for size in _SIZES if size <= most)


def in_blocks(weights: Tensor, rows: Tensor, size: int, biased: bool) -> Tensor:
    """All rows, a whole number of blocks of ``size``; the bias is that of ``cancelling``."""
    bias = -weights[:, 0].expand(size, -1) if biased else None
    parts = (rows[i : i + size] for i in range(0, rows.shape[0], size))
    empty = rows.new_empty(0, len(weights))
    return torch.cat([empty, *(_block(weights, part, size, bias, 1, 1) for part in parts)])


def cancelling(rows: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """(rows, K) and weights (N, K) whose exact products are all zero (K odd: nearly all).

    Half of the weights repeat the other half with the sign turned, at places drawn once, and the
    rows repeat likewise. Exponents spread over 2^8 so that partial sums round at many sizes. With a
    bias, the first of K is left out: rows are 1 there, and the bias takes its weight away again.
    """
    draw = torch.Generator().manual_seed(shape.n * 1_000_003 + shape.k)
    half = (shape.k - shape.biased) // 2
    places = shape.biased + torch.randperm(shape.k - shape.biased, generator=draw)
    one, other = places[:half], places[half : 2 * half]

    def values(count: int) -> Tensor:
        spread = torch.randint(-4, 5, (count, half), generator=draw)
        return torch.ldexp(torch.randn(count, half, generator=draw), spread).to(shape.dtype)

    x = torch.zeros(rows, shape.k, dtype=shape.dtype)
    x[:, one] = x[:, other] = values(rows)
    drawn = values(min(shape.n, _DISTINCT))
    weights = torch.zeros(len(drawn), shape.k, dtype=shape.dtype)
    weights[:, one] = drawn
    weights[:, other] = -drawn
    if shape.biased:
        x[:, 0] = 1
        weights[:, 0] = 16 * torch.randn(len(drawn), generator=draw)
    weights = weights.repeat(-(-shape.n // len(drawn)), 1)[: shape.n]
    if shape.layout != "rows":
        weights = weights.t().contiguous().t()
    return x, weights


def _block(weights: Tensor, rows: Tensor, size: int, bias: Tensor | None, beta: float,
           alpha: float) -> Tensor:  # fmt: skip
    """One block: ``rows`` (m <= size, K) padded with zero rows; returns (m, N).

    The rows lie where a fresh allocation begins, so that their alignment is always the same.
    """
    count = rows.shape[0]
    if count < size:
        block = pad(rows, (0, 0, 0, size - count))
    elif rows.is_contiguous() and rows.data_ptr() % _ALIGNMENT == 0:
        block = rows
    else:
        block = rows.clone(memory_format=torch.contiguous_format)
    turned = _turned(rows.dtype)
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


@functools.cache
def _turned(dtype: torch.dtype) -> bool:
    """Which way round the product is taken: follows the CPU and the type alone."""
    return dtype in (torch.bfloat16, torch.float16) and has_matrix_units()
