"""Root-mean-square and layer normalisation of rows, each row in an order fixed by its width.

    rms_norm:    y = x / sqrt(mean(x**2) + eps) * weight
    layer_norm:  y = (x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) * weight + bias

Statistics and products are FP32 (FP64 for FP64 inputs); there is one rounding, to the input type.
How many rows one program takes follows the number of rows; it cannot change a bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from .norm_kernels import norm_kernel
from .support import (
    Ready,
    cdiv,
    differentiable,
    layout,
    next_power_of_2,
    on_device,
    processors,
    require,
    row_warps,
    start,
    tl,
)

CHUNK = 16384
"""Widest row held in registers; wider ones are summed lane by lane over chunks of this width."""


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor | None = None,
                       eps: float | None = None) -> torch.Tensor:  # fmt: skip
    """Plain PyTorch, computed in float64 and rounded once."""
    wide = x.double()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight.double()).to(x.dtype)


def layer_norm_reference(x: torch.Tensor, weight: torch.Tensor | None = None,
                         bias: torch.Tensor | None = None, eps: float = 1e-5,
                         ) -> torch.Tensor:  # fmt: skip
    """Plain PyTorch over the last dimension, computed in float64 and rounded once."""
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.double()
    return (y if bias is None else y + bias.double()).to(x.dtype)


_ready = Ready()


def _launch(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float,
            residual: torch.Tensor | None, centre: bool, stats: bool, width: int,
            key: Any = None) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Normalise rows of ``width``: (y, h, mean, rstd); h is x where there is no residual.

    With a ``key`` the launch is kept for the next rms_norm of operands laid out alike.
    """
    device = require(x, weight, bias, residual)
    rows = x.numel() // width if width else 0
    flat = _rows(x, rows, width)
    other = flat if residual is None else _rows(residual, rows, width)
    y = torch.empty((rows, width), dtype=x.dtype, device=device)
    h = torch.empty_like(y) if residual is not None else flat
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean = torch.empty(rows, dtype=acc, device=device) if stats else y
    rstd = torch.empty_like(mean) if stats else y
    if y.numel():
        block = min(next_power_of_2(width), CHUNK)
        # Enough rows a program to fill its threads, once there are programs for all processors.
        group = max(1, min(4096 // block, rows // (4 * processors(device))))
        group = 1 << (group.bit_length() - 1)
        w = weight.contiguous() if weight is not None else flat
        b = bias.contiguous() if bias is not None else flat
        args = (flat, other, w, b, y, h, mean, rstd, rows, width, flat.stride(0), other.stride(0),
                *_split(eps))  # fmt: skip
        constants = dict(
            R=group, B=block, ONE=width <= block, CENTRE=centre, RESIDUAL=residual is not None,
            WEIGHT=weight is not None, BIAS=bias is not None, STATS=stats,
            ACC=tl.float64 if acc == torch.float64 else tl.float32)  # fmt: skip
        options = dict(num_warps=row_warps(x, group * block), enable_fp_fusion=False)
        with on_device(device):
            grid = (cdiv(rows, group), 1, 1)
            compiled = start(norm_kernel, grid, args, constants, options)
        if key is not None and compiled is not None and flat.data_ptr() == x.data_ptr():
            run, rest = compiled[grid], (*args[8:], *constants.values())

            def again(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor | None) -> None:
                run(x, x, x if w is None else w, x, y, x, y, y, *rest)

            if weight is None or w is weight:
                _ready.put(key, x, tuple(x.shape), again)
    return y.view(x.shape), h.view(x.shape), mean, rstd


@functools.cache
def _split(eps: float) -> tuple[float, float]:
    """eps as FP32, the type of a kernel's scalars, and the rest, which FP64 rows add back."""
    high = torch.tensor(eps, dtype=torch.float32).item()
    return high, eps - high


def _rows(x: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """View (or, where the strides do not allow it, copy) as (rows, width) with unit stride."""
    flat = x.reshape(rows, width)
    return flat if flat.stride(1) == 1 or width == 1 else flat.contiguous()


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = None,
             residual: torch.Tensor | None = None) -> Any:  # fmt: skip
    """RMS norm over the last ``weight.dim()`` dimensions (the last one without weight).

    Args:
        x: (..., D), any strides.
        weight: (D,) or None.
        eps: added to the mean square; the type's machine epsilon if None, as in torch.
        residual: added to x first; then the result is ``(y, h)`` with ``h = x + residual`` in the
            type of x, and ``y = rms_norm(h)``.
    """
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if residual is None and differentiable(x, weight):
        return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    key = None
    if residual is None:
        key = (layout(x), layout(weight), eps)
        ready = _ready.get(key)
        if ready is not None:
            return ready(x, weight)
    width = x.shape[-1] if weight is None else weight.numel()
    y, h, _, _ = _launch(x, weight, None, eps, residual, False, False, width, key)
    return y if residual is None else (y, h)


class _RMSNorm(torch.autograd.Function):
    """With g = grad * weight: dx = rstd (g - x rstd**2 mean(g x)), all sums in fixed order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None,
                eps: float) -> torch.Tensor:  # fmt: skip
        width = x.shape[-1] if weight is None else weight.numel()
        y, _, _, rstd = _launch(x, weight, None, eps, None, False, True, width)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from .reduce import mean, sum as ordered_sum  # noqa: I001

        x, weight, rstd = ctx.saved_tensors
        wide = rstd.dtype
        width = x.shape[-1] if weight is None else weight.numel()
        flat, grad = x.reshape(-1, width).to(wide), grads[0].reshape(-1, width).to(wide)
        scale = rstd[:, None]
        g = grad if weight is None else grad * weight.reshape(-1).to(wide)
        dot = mean(g * flat, -1, keepdim=True)
        gx = (scale * (g - flat * (scale * scale * dot))).to(x.dtype).view(x.shape)
        if weight is None:
            return gx, None, None
        gw = ordered_sum(grad * (flat * scale), 0).to(weight.dtype).view(weight.shape)
        return gx, gw, None


def layer_norm(x: torch.Tensor, normalized_shape: Sequence[int],
               weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
               eps: float = 1e-5) -> torch.Tensor:  # fmt: skip
    """Layer norm over the last dimensions, whose sizes are ``normalized_shape``."""
    return layer_norm_with_statistics(x, normalized_shape, weight, bias, eps)[0]


def layer_norm_with_statistics(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None,
    bias: torch.Tensor | None, eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(y, mean, 1 / standard deviation), the three results of aten::native_layer_norm."""
    tail = tuple(normalized_shape)
    if tuple(x.shape[x.dim() - len(tail) :]) != tail:
        raise ValueError(f"layer_norm: shape {tuple(x.shape)} does not end with {tail}")
    y, _, mean, rstd = _launch(x, weight, bias, eps, None, True, True, math.prod(tail))
    lead = (*x.shape[: x.dim() - len(tail)], *(1 for _ in tail))
    return y, mean.view(lead), rstd.view(lead)
