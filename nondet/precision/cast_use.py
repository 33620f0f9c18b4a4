"""Casting parameters where they are used, for modules that own large ones in shapes of their own.

A stack of experts is indexed, a scaled embedding is looked up: casting the whole parameter first
would write an FP32 copy of it. So within ``CastUse`` views and lookups stay in 16 bits, products
take the 16-bit weight, and any other operation gets its 16-bit arguments cast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .products import HALVES, product

# Functions that only look at a tensor, or at a part of it.
_NAMES = """
__get__ __getitem__ __len__ T mT chunk contiguous data_ptr detach dim element_size expand flatten
float index_select is_contiguous is_floating_point movedim narrow numel permute requires_grad_
reshape select size split squeeze stride t to transpose type unbind unflatten unsqueeze
untyped_storage view
"""
_LOOKING = frozenset(_NAMES.split())


class CastUse(TorchFunctionMode):
    """Within it, what is computed with 16-bit tensors is computed in FP32."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _LOOKING:
            return _not_narrowed(func(*args, **kwargs), args)
        if func is torch.nn.functional.linear:
            return self._linear(*args, **kwargs)
        if func is torch.nn.functional.embedding:
            return func(*args, **kwargs).float()
        return func(*tree_map(_wide, args), **tree_map(_wide, kwargs))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        with torch._C.DisableTorchFunction():
            return product(input.float(), weight, bias, self.fused)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALVES else value


def _not_narrowed(result: Any, args: tuple[Any, ...]) -> Any:
    """``x.to(weight.dtype)`` means "to the model's type", which is FP32 here: x itself."""
    first = args[0] if args else None
    if isinstance(result, Tensor) and isinstance(first, Tensor):
        narrowed = result.dtype in HALVES and first.dtype == torch.float32
        return first if narrowed else result
    return result
