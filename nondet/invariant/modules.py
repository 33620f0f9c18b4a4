"""Linear layers and RMS norms of a model, called without a way through torch's dispatcher.

A decode step of a small model takes as long as its launches take the host. A kernel behind an aten
operation costs Python the dispatcher's boxing on top, and an RMS norm written in PyTorch is seven
launches. So while a model is switched, its own modules call the kernels: a linear layer the very
product its aten operation would run, a norm one fused kernel with one rounding at the end.

Linear layers keep to the aten operation where somebody watches the operations, wants gradients,
compiles or runs under autocast. Norms are the fused kernel in all of these but compilation. What is
said here is about a GPU; ``cpu_modules`` has the short ways on the CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module

from .cpu_modules import short_linear, short_rms_norm
from .cpu_packed import Packing
from .switch import active

_lock = threading.RLock()
# id(module) -> open contexts.
_switched: dict[int, int] = {}


@contextmanager
def modules_switched(model: Module | None, groups: frozenset[str]) -> Iterator[None]:
    """Give the linear layers and RMS norms their short way; take it back after."""
    made = []
    packing = Packing()
    for module in [] if model is None else model.modules():
        short = _make(module, groups, packing)
        if short is not None:
            made.append((module, short))
    with _lock:
        for module, short in made:
            _switched[id(module)] = _switched.get(id(module), 0) + 1
            if _switched[id(module)] == 1:
                module.forward = short
    try:
        yield
    finally:
        with _lock:
            for module, _ in made:
                _switched[id(module)] -= 1
                if _switched[id(module)] == 0:
                    del _switched[id(module)]
                    del module.forward


def _make(module: Module, groups: frozenset[str],
          packing: Packing) -> Callable[[Tensor], Tensor] | None:  # fmt: skip
    """The short forward of a module, or None where it has none."""
    weight = module._parameters.get("weight")
    if weight is None or not weight.is_floating_point() or not (weight.is_cuda or weight.is_cpu):
        return None
    if "forward" in vars(module) and id(module) not in _switched:
        return None  # somebody else's, a hook of accelerate for example
    if "matmul" in groups and type(module) is Linear:
        return _linear(module) if weight.is_cuda else short_linear(module, packing)
    if weight.is_cpu:
        eps = epsilon(module)
        if {"mean", "pointwise"} <= groups and eps is not None and is_rms_norm(module):
            return short_rms_norm(module, eps)
        return None
    if "norm" in groups and is_rms_norm(module):
        return _rms_norm(module)
    return None


def _linear(module: Linear) -> Callable[[Tensor], Tensor]:
    from nondet_kernels.matmul import linear

    from .cuda import tf32

    own, parameters = type(module).forward, module._parameters

    def forward(x: Tensor) -> Tensor:
        if (
            torch.compiler.is_compiling()
            or torch.is_grad_enabled()
            or torch._C._len_torch_dispatch_stack()
            or torch.is_autocast_enabled("cuda")
            or not active("matmul")
        ):
            return own(module, x)
        weight = parameters["weight"]
        assert weight is not None
        if x.dtype is not weight.dtype or not x.is_cuda:
            return own(module, x)
        return linear(x, weight, parameters["bias"], tf32())

    return forward


def _rms_norm(module: Module) -> Callable[[Tensor], Tensor]:
    from nondet_kernels.norm import rms_norm

    own: Callable[..., Tensor] = type(module).forward
    parameters, eps = module._parameters, epsilon(module)

    def forward(x: Tensor) -> Tensor:
        weight = parameters["weight"]
        if torch.compiler.is_compiling() or not active("norm"):
            return own(module, x)
        if weight is None or x.dtype is not weight.dtype or not x.is_cuda:
            return own(module, x)
        return rms_norm(x, weight, eps)  # type: ignore[no-any-return]

    return forward


def epsilon(module: Module) -> float | None:
    """What a norm adds to the mean square, under the names models use; None if there is none."""
    for name in ("variance_epsilon", "eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


_shapes: dict[type[Module], bool] = {}


def is_rms_norm(module: Module) -> bool:
    """Whether the module computes x / sqrt(mean(x**2) + eps) * weight over the last dimension.

    Tried out once a class, since some models scale by 1 + weight under the same name.
    """
    kind = type(module)
    if not kind.__name__.endswith("RMSNorm") or epsilon(module) is None:
        return False
    if kind not in _shapes:
        _shapes[kind] = _tried(module)
    return _shapes[kind]


@torch.no_grad()
def _tried(module: Module) -> bool:
    named: list[Any] = [*module.named_parameters(), *module.named_buffers()]
    weight = module._parameters.get("weight")
    if [name for name, _ in named] != ["weight"] or weight is None or weight.dim() != 1:
        return False
    draw = torch.Generator().manual_seed(0)
    x = (torch.randn(3, len(weight), generator=draw) * 3).to(weight)
    wide = x.double()
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + (epsilon(module) or 0.0))
    wanted = wide * root * weight.double()
    found: Tensor = type(module).forward(module, x)
    return found.shape == x.shape and torch.allclose(found.double(), wanted, 2e-2, 1e-4)
