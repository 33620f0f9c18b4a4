"""softmax and log_softmax over any dimension, in an order fixed by that dimension's length.

    softmax:      y = exp(x - m) / s            m = max(x),  s = sum(exp(x - m))
    log_softmax:  y = (x - m) - log(s)

Up to ``WIDE`` elements one program holds the row. A longer row (a vocabulary) is cut into chunks
of ``WIDE``: one pass takes (m_c, s_c) of every chunk, a second adds s = sum_c s_c exp(m_c - m) by
a fixed tree and writes. Both passes use a program per chunk, so one row fills the GPU.
Results in FP32 and FP64 use an exponential good to the last place, 16-bit results a faster one.
"""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import divide, exact_exp, exact_log, tree_sum
from .support import (
    cdiv,
    differentiable,
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

WIDE = 8192


def softmax_reference(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Plain PyTorch in float64, rounded once."""
    return torch.softmax(x.double(), dim).to(dtype or x.dtype)


def log_softmax_reference(x: torch.Tensor, dim: int,
                          dtype: torch.dtype | None = None) -> torch.Tensor:  # fmt: skip
    """Plain PyTorch in float64, rounded once."""
    return torch.log_softmax(x.double(), dim).to(dtype or x.dtype)


@jit
def exponential(x, FAST: tl.constexpr):
    """e**x for x <= 0; FAST is good to 16 bits, which is all that a 16-bit result can hold."""
    if FAST:
        t = x * 1.4426950408889634
        # The fast exponential has no subnormal results, but the two types' ranges end there.
        low = t < -64.0
        y = tl.exp2(tl.where(low, t + 64.0, t)) * tl.where(low, 5.421010862427522e-20, 1.0)
    else:
        y = exact_exp(x)
    return y


@jit
def finish(x, m, s, LOG: tl.constexpr, FAST: tl.constexpr):
    """One block of the result from the row's maximum and sum."""
    if LOG:
        y = (x - m[:, None]) - exact_log(s)[:, None]
    elif FAST:
        y = exponential(x - m[:, None], FAST) * divide(tl.full(s.shape, 1.0, s.dtype), s)[:, None]
    else:
        y = divide(exact_exp(x - m[:, None]), tl.broadcast_to(s[:, None], x.shape))
    return y


@jit_free("M")
def row_kernel(x_ptr, y_ptr, M, D, stride, R: tl.constexpr, B: tl.constexpr, LOG: tl.constexpr,
               FAST: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """R whole rows a program."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    col = tl.arange(0, B)[None, :]
    mask = (row < M) & (col < D)
    x = tl.load(x_ptr + row * stride + col, mask, other=float("-inf")).to(ACC)
    m = tl.max(x, axis=1)
    e = tl.where(col < D, exponential(x - m[:, None], FAST), 0.0)
    y = finish(x, m, tree_sum(e), LOG, FAST)
    tl.store(y_ptr + row * D + col, y.to(y_ptr.dtype.element_ty), mask)


@jit
def chunk_kernel(x_ptr, m_ptr, s_ptr, D, stride, CHUNKS, B: tl.constexpr, FAST: tl.constexpr,
                 ACC: tl.constexpr):  # fmt: skip
    """Maximum and sum of exponentials of one chunk of one row; grid (chunks, rows)."""
    row, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    col = chunk * B + tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + row * stride + col, col < D, other=float("-inf")).to(ACC)
    m = tl.max(x, axis=1)
    # A chunk of -inf alone must give 0, not NaN: the row may have values elsewhere.
    safe = tl.where(m == float("-inf"), 0.0, m)
    s = tree_sum(exponential(x - safe[:, None], FAST))
    at = row * CHUNKS + chunk + tl.arange(0, 1)
    tl.store(m_ptr + at, m)
    tl.store(s_ptr + at, s)


@jit
def write_kernel(x_ptr, m_ptr, s_ptr, y_ptr, D, stride, CHUNKS, P: tl.constexpr,
                 B: tl.constexpr, LOG: tl.constexpr, FAST: tl.constexpr,
                 ACC: tl.constexpr):  # fmt: skip
    """Add the chunks' sums in fixed order, and write one chunk; grid (chunks, rows)."""
    row, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    part = tl.arange(0, P)[None, :]
    m_c = tl.load(m_ptr + row * CHUNKS + part, part < CHUNKS, other=float("-inf"))
    s_c = tl.load(s_ptr + row * CHUNKS + part, part < CHUNKS, other=0.0)
    m = tl.max(m_c, axis=1)
    weight = tl.where(part < CHUNKS, exact_exp(m_c - m[:, None]), 0.0)
    s = tree_sum(s_c * weight)
    col = chunk * B + tl.arange(0, B)[None, :]
    x = tl.load(x_ptr + row * stride + col, col < D, other=0.0).to(ACC)
    tl.store(y_ptr + row * D + col, finish(x, m, s, LOG, FAST).to(y_ptr.dtype.element_ty), col < D)


def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.softmax``; ``dtype`` converts the input first (half_to_float included)."""
    return _call(x, dim, dtype, False)


def log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.log_softmax``; ``dtype`` converts the input first (half_to_float included)."""
    return _call(x, dim, dtype, True)


def softmax_backward(grad: torch.Tensor, y: torch.Tensor, dim: int,
                     input_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """aten::_softmax_backward_data: ``y * (grad - sum(grad * y))``."""
    from .reduce import sum as ordered_sum

    wide = torch.float64 if y.dtype == torch.float64 else torch.float32
    g = grad.to(wide) * y.to(wide)
    return (g - y.to(wide) * ordered_sum(g, dim, keepdim=True)).to(input_dtype)


def log_softmax_backward(grad: torch.Tensor, y: torch.Tensor, dim: int,
                         input_dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """aten::_log_softmax_backward_data: ``grad - exp(y) * sum(grad)``."""
    from .reduce import sum as ordered_sum

    wide = torch.float64 if y.dtype == torch.float64 else torch.float32
    total = ordered_sum(grad, dim, keepdim=True, dtype=wide)
    return (grad.to(wide) - y.to(wide).exp() * total).to(input_dtype)


class _Softmax(torch.autograd.Function):
    """Forward and backward, each row alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, dtype: torch.dtype,
                log: bool) -> torch.Tensor:  # fmt: skip
        y = _forward(x, dim, dtype, log)
        ctx.save_for_backward(y)
        ctx.dim, ctx.log, ctx.dtype = dim, log, x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        function = log_softmax_backward if ctx.log else softmax_backward
        return function(grads[0], y, ctx.dim, ctx.dtype), None, None, None


def _call(x: torch.Tensor, dim: int, dtype: torch.dtype | None, log: bool) -> torch.Tensor:
    out = dtype or x.dtype
    if out.itemsize != 4 or x.dtype.itemsize != 2:
        x = x.to(out)  # 16-bit inputs are widened inside the kernel, exactly.
    if differentiable(x):
        result: torch.Tensor = _Softmax.apply(x, dim, out, log)  # type: ignore[no-untyped-call]
        return result
    return _forward(x, dim, out, log)


def _forward(x: torch.Tensor, dim: int, dtype: torch.dtype, log: bool) -> torch.Tensor:
    device = require(x)
    if x.dim() == 0:
        return _forward(x[None], 0, dtype, log)[0]
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"dim={dim}: must be in [{-x.dim()}, {x.dim() - 1}]")
    moved = x.movedim(dim, -1)
    d = moved.shape[-1]
    y = torch.empty(moved.shape, dtype=dtype, device=device)
    if y.numel():
        flat = moved.reshape(-1, d)
        flat = flat if flat.stride(1) == 1 or d == 1 else flat.contiguous()
        with on_device(device):
            _launch(flat, y.view(-1, d), log)
    return y if dim in (-1, x.dim() - 1) else y.movedim(-1, dim).contiguous()


def _launch(x: torch.Tensor, y: torch.Tensor, log: bool) -> None:
    rows, d = x.shape
    acc = tl.float64 if x.dtype == torch.float64 else tl.float32
    fast = y.dtype.itemsize == 2
    if d <= WIDE:
        block = next_power_of_2(d)
        group = max(1, min(4096 // block, rows // (4 * processors(x.device))))
        group = 1 << (group.bit_length() - 1)
        # Few rows: more threads for each, since nothing else fills the processors.
        warps = row_warps(x, group * block) * (2 if rows < processors(x.device) else 1)
        start(row_kernel, (cdiv(rows, group), 1, 1), (x, y, rows, d, x.stride(0)),
              dict(R=group, B=block, LOG=log, FAST=fast, ACC=acc),
              dict(num_warps=warps, enable_fp_fusion=False))  # fmt: skip
        return
    chunks = cdiv(d, WIDE)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    m = torch.empty((2, rows, chunks), dtype=wide, device=x.device)
    options = dict(num_warps=2 * row_warps(x, WIDE), enable_fp_fusion=False)
    for first in range(0, rows, 65535):
        part = slice(first, first + 65535)
        grid = (chunks, x[part].shape[0], 1)
        start(chunk_kernel, grid, (x[part], m[0, part], m[1, part], d, x.stride(0), chunks),
              dict(B=WIDE, FAST=fast, ACC=acc), options)  # fmt: skip
        start(
            write_kernel,
            grid,
            (x[part], m[0, part], m[1, part], y[part], d, x.stride(0), chunks),
            dict(P=next_power_of_2(chunks), B=WIDE, LOG=log, FAST=fast, ACC=acc),
            options,
        )
