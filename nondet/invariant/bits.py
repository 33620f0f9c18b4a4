"""Comparing tensors as integers: NaN equals the same NaN, and 0 differs from -0."""

from __future__ import annotations

import torch
from torch import Tensor

_VIEWS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(x: Tensor) -> Tensor:
    """The bits of ``x`` as integers of the same size; complex numbers as pairs."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if not x.is_floating_point():
        return x
    return x.contiguous().view(_VIEWS[x.element_size()])


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether shape, dtype and every bit agree."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(as_bits(a), as_bits(b))


def differing(a: Tensor, b: Tensor) -> int:
    """How many elements differ in their bits; shapes and dtypes must agree."""
    return int((as_bits(a) != as_bits(b)).sum())
