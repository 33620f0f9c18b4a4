"""LayerCast: weights stay in 16 bits, everything is computed in FP32.

After Yuan et al. (arXiv 2506.09501, section 5), for any model: a module is treated by what it owns,
not by its class. A linear layer multiplies by its 16-bit weight (``products``), an embedding casts
the rows it looked up, and any other module that owns parameters runs its own forward while it sees
them in FP32. What owns no parameter computes in FP32 because its inputs are. The logits are not
scaled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .cast_use import CastUse
from .products import HALVES, choose_product, product

SWAP_ELEMENTS = 1 << 20
"""A module that owns no more than this is shown FP32 copies of its parameters for one call."""
KEEP_ELEMENTS = 1 << 14
"""Of no more than this the copies are kept: the vectors of norms, a few ten thousandths."""

Forward = Callable[..., Any]


@dataclass
class Cast:
    """How one module that owns 16-bit parameters is computed, and what was seen of it.

    way: linear, embedding, swap (its parameters in FP32 for a call) or use (cast where used).
    """

    name: str
    kind: str
    parameters: int
    stored: str
    way: str
    calls: int = 0
    narrow_inputs: int = 0
    outputs: set[str] = field(default_factory=set)


class LayerCast:
    """A model whose forward passes compute in FP32 on 16-bit weights, until ``undo``.

    Args:
        model: a transformers model in bf16 or fp16, already on its device.
        asked: the product: auto, fused or plain.
    """

    def __init__(self, model: nn.Module, asked: str = "auto") -> None:
        self.model = model
        device = next(model.parameters()).device
        self.product = choose_product(asked, device)
        self.casts: list[Cast] = []
        self._undo: list[Callable[[], None]] = []
        self._experts_one_by_one()
        for name, module in model.named_modules():
            self._widen_buffers(module)
            own = dict(module.named_parameters(recurse=False))
            if any(p.dtype in HALVES for p in own.values()):
                self._cast(name, module, own)
        for module in model.modules():
            if hasattr(type(module), "dtype") and hasattr(module, "config"):
                self._say_float32(module)

    def undo(self) -> None:
        """Give every module its own forward back; buffers stay in FP32."""
        while self._undo:
            self._undo.pop()()

    def _cast(self, name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> None:
        stored = sorted({str(p.dtype).removeprefix("torch.") for p in own.values()})
        count = sum(p.numel() for p in own.values())
        cast = Cast(name, type(module).__name__, count, "+".join(stored), _way(module, count))
        self.casts.append(cast)
        makers: dict[str, Callable[..., Forward]] = {
            "linear": linear_forward,
            "embedding": embedding_forward,
            "swap": swap_forward,
            "use": use_forward,
        }
        forward = makers[cast.way](module, self.product == "fused")
        self._undo.append(replace_forward(module, recorded(forward, cast)))

    def _experts_one_by_one(self) -> None:
        """A product over all experts at once would need all of their weights in FP32."""
        model: Any = self.model
        if getattr(type(model), "_can_set_experts_implementation", lambda: False)():
            own = model.get_experts_implementation()
            model.set_experts_implementation("eager")
            self._undo.append(lambda: model.set_experts_implementation(own))

    def _widen_buffers(self, module: nn.Module) -> None:
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.dtype in HALVES:
                module._buffers[name] = buffer.float()

    def _say_float32(self, module: Any) -> None:
        """Masks and caches are made in ``model.dtype`` and ``config.dtype``."""
        own_class, own_dtype = module.__class__, getattr(module.config, "dtype", None)
        told = {"dtype": property(lambda self: torch.float32), "__module__": own_class.__module__}
        module.__class__ = type(own_class.__name__, (own_class,), told)
        module.config.dtype = torch.float32

        def undo() -> None:
            module.__class__ = own_class
            module.config.dtype = own_dtype

        self._undo.append(undo)


def _way(module: nn.Module, count: int) -> str:
    forward = type(module).forward
    if forward is nn.Linear.forward:
        return "linear"
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward:
        return "embedding" if module.max_norm is None else "swap"
    return "swap" if count <= SWAP_ELEMENTS else "use"


def replace_forward(module: Any, forward: Forward) -> Callable[[], None]:
    """Put ``forward`` in the module's place; the result puts its own back."""
    before = module.__dict__.get("forward")
    # generate looks at the signature of a model's forward.
    module.forward = functools.wraps(module.forward)(forward)

    def undo() -> None:
        if before is None:
            del module.forward
        else:
            module.forward = before

    return undo


def recorded(forward: Forward, cast: Cast) -> Forward:
    """``forward`` on FP32 inputs, with what came in and went out noted in ``cast``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        cast.calls += 1
        for value in args:
            if isinstance(value, Tensor) and value.dtype in HALVES:
                cast.narrow_inputs += 1
                args = tuple(
                    v.float() if isinstance(v, Tensor) and v.dtype in HALVES else v for v in args
                )
                break
        result = forward(*args, **kwargs)
        if isinstance(result, Tensor):
            if result.dtype != torch.float32:
                cast.outputs.add(str(result.dtype).removeprefix("torch."))
        else:
            cast.outputs.update(_narrow(result))
        return result

    return call


def _narrow(result: Any) -> Iterator[str]:
    for value in result if isinstance(result, tuple | list) else ():
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype in HALVES:
            yield str(value.dtype).removeprefix("torch.")


def linear_forward(module: nn.Module, fused: bool) -> Forward:
    """A linear layer whose weight is read in 16 bits."""
    own = module._parameters

    def forward(input: Tensor) -> Tensor:
        weight = own["weight"]
        assert weight is not None
        return product(input, weight, own["bias"], fused)

    return forward


def embedding_forward(module: nn.Module, fused: bool) -> Forward:
    """Rows are looked up in 16 bits and cast."""
    inner = module.forward
    return lambda input: inner(input).float()


def swap_forward(module: nn.Module, fused: bool) -> Forward:
    """The module's own forward while its parameters are FP32 copies."""
    inner = module.forward
    count = sum(p.numel() for p in module.parameters(recurse=False))
    kept = wide_copies(module) if count <= KEEP_ELEMENTS else None

    def forward(*args: Any, **kwargs: Any) -> Any:
        with wide_parameters(module, kept):
            return inner(*args, **kwargs)

    return forward


def wide_copies(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own parameters, those of 16 bits as FP32 copies."""
    return {
        name: p.detach().float() if p is not None and p.dtype in HALVES else p
        for name, p in module._parameters.items()
    }


@contextmanager
def wide_parameters(
    module: nn.Module, copies: dict[str, Tensor | None] | None = None
) -> Iterator[None]:
    """The module's own parameters read as FP32 copies inside the block. Not for two threads."""
    own = module._parameters
    module.__dict__["_parameters"] = wide_copies(module) if copies is None else copies
    try:
        yield
    finally:
        module.__dict__["_parameters"] = own


def use_forward(module: nn.Module, fused: bool) -> Forward:
    """The module's own forward, its parameters cast where they are used."""
    inner = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with CastUse(fused):
            return inner(*args, **kwargs)

    return forward
