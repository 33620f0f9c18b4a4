"""Linear layers and RMS norms of a CPU model, without a way through torch's dispatcher.

A kernel behind an aten operation costs Python the dispatcher's boxing, several times what the
operation itself does to one row of a small model. The short ways here give the operations' bits: a
linear layer through a copy of its weights (``cpu_packed``), a norm by the same steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from .bits import same_bits
from .cpu_packed import Packing
from .cpu_pointwise import STEP, aligned
from .cpu_reduce import GRAIN
from .original import original
from .switch import active


def short_linear(module: Linear, packing: Packing) -> Callable[[Tensor], Tensor]:
    """The forward of a linear layer; aten::linear where somebody has to see the operation."""
    own, parameters = type(module).forward, module._parameters

    def forward(x: Tensor) -> Tensor:
        weight = parameters["weight"]
        if weight is None or x.dtype is not weight.dtype or watched() or not active("matmul"):
            return own(module, x)
        # With a bias, torch chooses between one rounding and two by the shape of x.
        if parameters["bias"] is not None or x.dim() == 0 or not x.is_cpu:
            return own(module, x)
        n, k = weight.shape
        packed = packing.find(weight)
        if packed is None or x.shape[-1] != k or x.numel() == 0:
            return own(module, x)
        return packed(x.reshape(-1, k)).view(*x.shape[:-1], n)

    return forward


def short_rms_norm(module: Module, eps: float) -> Callable[[Tensor], Tensor] | None:
    """The forward of an RMS norm, or None where ``rms_norm`` rounds at other places than it."""
    own: Callable[..., Tensor] = type(module).forward
    parameters = module._parameters
    weight = parameters["weight"]
    assert weight is not None
    kind: Any = type(module)
    if not _same_steps(kind, len(weight), weight.dtype, eps):
        return None

    def forward(x: Tensor) -> Tensor:
        weight = parameters["weight"]
        if weight is None or x.dtype is not weight.dtype or watched() or not _fits(x):
            return own(module, x)
        if not (active("mean") and active("pointwise")):
            return own(module, x)
        return rms_norm(x, weight, eps)

    return forward


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., N) / sqrt(mean(x**2) + eps) * weight, rounded where transformers' norms round.

    Step by step their operations: the mean is a sum, then a division.
    """
    wide = x.float()
    rows = (wide * wide).view(-1, x.shape[-1])
    mean = original("sum.dim_IntList")(rows, [1], True).div_(x.shape[-1])
    # Each mean STEP times, so that the root takes whole vectors without a copy.
    root = _rsqrt()(mean + _added(eps))[:, :1].view(*x.shape[:-1], 1)
    return weight * (wide * root).to(x.dtype)


@functools.cache
def _rsqrt() -> Callable[..., Tensor]:
    return aligned("rsqrt")


@functools.cache
@torch.inference_mode(False)
def _added(eps: float) -> Tensor:
    return torch.full((STEP,), eps)


def _fits(x: Tensor) -> bool:
    """Rows that one thread sums from end to end, in the layout that holds."""
    return x.is_cpu and x.is_contiguous() and x.numel() > 0 and 1 < x.shape[-1] < GRAIN


def watched() -> bool:
    """Whether somebody wants gradients or operations: a mode, a compiler, autocast."""
    return bool(
        torch.is_grad_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
    )


@functools.cache
@torch.inference_mode()
def _same_steps(kind: Any, width: int, dtype: torch.dtype, eps: float) -> bool:
    """Whether the class computes the bits of ``rms_norm``, tried on drawn rows."""
    draw = torch.Generator().manual_seed(width)
    x, weight = (torch.randn(n, width, generator=draw).to(dtype) for n in (64, 1))
    model: Any = kind.__new__(kind)
    Module.__init__(model)
    model.register_parameter("weight", torch.nn.Parameter(weight[0], requires_grad=False))
    model.variance_epsilon = model.eps = eps
    model.normalized_shape = (width,)
    found = kind.forward(model, x)
    return isinstance(found, Tensor) and same_bits(found, rms_norm(x, weight[0], eps))
