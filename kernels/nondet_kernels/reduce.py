"""Sum and mean over any dimensions, in one order fixed by the number of elements reduced.

The reduced elements are numbered in row-major order of the reduced dimensions. Element j goes to
lane ``j % 1024``; a lane adds its elements in ascending order (for FP32 and FP64 inputs it keeps
what each addition loses and gives it back at the end); the lanes are added as in ``tree_sum``.
More than ``PART`` elements are cut into parts of ``PART``, whose sums are then reduced the same
way. Layout, strides and the number of rows do not enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .arithmetic import divide, tree_sum, tree_sum_columns
from .support import (
    HALVES,
    LANES,
    cdiv,
    jit,
    jit_free,
    next_power_of_2,
    on_device,
    processors,
    require,
    row_warps,
    start,
    tl,
)

PART = 8192
Dims = int | Sequence[int] | None


def sum_reference(x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
    """Plain PyTorch in float64, rounded once to the type of x."""
    return x.double().sum(_dims(x, dim), keepdim=keepdim).to(x.dtype)


def mean_reference(x: torch.Tensor, dim: Dims = None, keepdim: bool = False) -> torch.Tensor:
    """Plain PyTorch in float64, rounded once to the type of x."""
    return x.double().mean(_dims(x, dim), keepdim=keepdim).to(x.dtype)


@jit
def add(lanes, lost, x, KEEP: tl.constexpr):
    """lanes + x, and with KEEP what the rounding of each addition lost so far."""
    total = lanes + x
    if KEEP:
        part = total - lanes
        lost += (lanes - (total - part)) + (x - part)
    return total, lost


@jit
def settle(lanes, lost):
    """Give the lanes back what was lost; nothing where that is not a number (infinite sums)."""
    return tl.where(lost == lost, lanes + lost, lanes)


@jit_free("M")
def rows_kernel(x_ptr, y_ptr, M, D, stride_m, count, PARTS, SIZE, R: tl.constexpr,
                B: tl.constexpr, MEAN: tl.constexpr, KEEP: tl.constexpr,
                ACC: tl.constexpr):  # fmt: skip
    """x (M, D) with unit stride along D: R rows and one part a program."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    col = tl.arange(0, B)[None, :]
    start = tl.program_id(1).to(tl.int64) * SIZE
    x_ptr += row[:, None] * stride_m + start
    left = tl.minimum(D - start, SIZE).to(tl.int32)
    lanes = tl.zeros((R, B), dtype=ACC)
    lost = tl.zeros((R, B), dtype=ACC)
    for base in range(0, left, B):
        mask = (row[:, None] < M) & (base + col < left)
        x = tl.load(x_ptr + base + col, mask, other=0.0).to(ACC)
        lanes, lost = add(lanes, lost, x, KEEP)
    y = tree_sum(settle(lanes, lost))
    if MEAN:
        y = divide(y, tl.full((R,), count, ACC))
    tl.store(y_ptr + row * PARTS + tl.program_id(1), y.to(y_ptr.dtype.element_ty), row < M)


@jit_free("M")
def columns_kernel(x_ptr, y_ptr, M, D, stride_d, count, PARTS, SIZE, C: tl.constexpr,
                   B: tl.constexpr, MEAN: tl.constexpr, KEEP: tl.constexpr,
                ACC: tl.constexpr):  # fmt: skip
    """x (M, D) with unit stride along M: C rows and one part a program."""
    row = tl.program_id(0).to(tl.int64) * C + tl.arange(0, C)
    lane = tl.arange(0, B)[:, None]
    start = tl.program_id(1).to(tl.int64) * SIZE
    x_ptr += row[None, :] + start * stride_d
    left = tl.minimum(D - start, SIZE).to(tl.int32)
    lanes = tl.zeros((B, C), dtype=ACC)
    lost = tl.zeros((B, C), dtype=ACC)
    for base in range(0, left, B):
        mask = (row[None, :] < M) & (base + lane < left)
        at = x_ptr + (base + lane).to(tl.int64) * stride_d
        x = tl.load(at, mask, other=0.0).to(ACC)
        lanes, lost = add(lanes, lost, x, KEEP)
    y = tree_sum_columns(settle(lanes, lost))
    if MEAN:
        y = divide(y, tl.full((C,), count, ACC))
    tl.store(y_ptr + row * PARTS + tl.program_id(1), y.to(y_ptr.dtype.element_ty), row < M)


def sum(x: torch.Tensor, dim: Dims = None, keepdim: bool = False,
        dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
    """``torch.sum``: all dimensions for None or an empty list. Integers are exact in torch."""
    if dtype is not None and dtype != x.dtype:
        x = x.to(dtype) if not _widens(x, dtype) else x
    if not x.is_floating_point():
        return torch.sum(x, _dims(x, dim), keepdim=keepdim)
    return _reduce(x, dim, keepdim, dtype or x.dtype, False)


def mean(x: torch.Tensor, dim: Dims = None, keepdim: bool = False,
         dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
    """``torch.mean``: all dimensions for None or an empty list; NaN over no elements.

    Raises:
        RuntimeError: integers without a floating ``dtype``, as in torch.
    """
    if dtype is not None and dtype != x.dtype:
        x = x.to(dtype) if not _widens(x, dtype) else x
    if not x.is_floating_point():
        return torch.mean(x, _dims(x, dim), keepdim=keepdim)  # Raises torch's own message.
    return _reduce(x, dim, keepdim, dtype or x.dtype, True)


def _widens(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """The kernel reads 16-bit inputs as FP32 anyway: no converted copy is needed."""
    return x.dtype in HALVES and dtype == torch.float32


def _dims(x: torch.Tensor, dim: Dims) -> tuple[int, ...]:
    """Reduced dimensions, ascending and non-negative.

    Raises:
        IndexError: out of range. RuntimeError: named twice.
    """
    rank = max(x.dim(), 1)
    chosen = (dim,) if isinstance(dim, int) else tuple(dim or range(x.dim()))
    for d in chosen:
        if not -rank <= d < rank:
            raise IndexError(f"dim={d}: must be in [{-rank}, {rank - 1}]")
    wrapped = sorted(d % rank for d in chosen)
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError(f"dim={dim}: each dimension may appear once")
    return tuple(wrapped) if x.dim() else ()


def _reduce(x: torch.Tensor, dim: Dims, keepdim: bool, dtype: torch.dtype,
            mean: bool) -> torch.Tensor:  # fmt: skip
    device = require(x)
    gone = _dims(x, dim)
    kept = tuple(d for d in range(x.dim()) if d not in gone)
    shape = [x.shape[d] for d in kept]
    count = math.prod(x.shape[d] for d in gone)
    rows = math.prod(shape)
    full = [1 if d in gone else x.shape[d] for d in range(x.dim())]
    y = torch.empty(full if keepdim else shape, dtype=dtype, device=device)
    if count == 0:
        return y.fill_(math.nan if mean else 0.0)
    if rows:
        with on_device(device):
            last = gone == (x.dim() - 1,) and x.is_contiguous()
            flat = x.view(rows, count) if last else x.permute(kept + gone).reshape(rows, count)
            _run(flat, y.view(-1), count if mean else 0)
    return y


def _run(x: torch.Tensor, y: torch.Tensor, mean: int) -> None:
    """Reduce (rows, count) into y (rows,), dividing by ``mean`` unless it is 0."""
    rows, count = x.shape
    parts = cdiv(count, PART)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    target = y if parts == 1 else torch.empty((rows, parts), dtype=wide, device=x.device)
    acc = tl.float64 if wide == torch.float64 else tl.float32
    lanes = min(next_power_of_2(count), LANES)
    busy = rows // (4 * processors(x.device))
    if rows > 1 and x.stride(0) == 1 and x.stride(1) != 1:
        # At least 16 columns, a sector of 32 bytes; more once all processors have programs.
        most = min(16 * LANES // lanes, 256, next_power_of_2(rows))
        group = max(min(16, most), min(most, next_power_of_2(busy)))
        kernel, stride, size = columns_kernel, x.stride(1), {"C": group}
        warps = max(1, min(8, group * lanes // 512))
    else:
        x = x if x.stride(1) == 1 or count == 1 else x.contiguous()
        group = 1 << (max(1, min(4096 // lanes, busy)).bit_length() - 1)
        kernel, stride, size = rows_kernel, x.stride(0), {"R": group}
        warps = row_warps(x, group * lanes)
    args = (x, target, rows, count, stride, mean, parts, PART)
    constants = dict(**size, B=lanes, MEAN=bool(mean and parts == 1), KEEP=x.dtype not in HALVES,
                     ACC=acc)  # fmt: skip
    options = dict(num_warps=warps, enable_fp_fusion=False)
    start(kernel, (cdiv(rows, group), parts, 1), args, constants, options)
    if parts > 1:
        _run(target, y, mean)
