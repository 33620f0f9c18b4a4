"""CPU functions of one element whose scalar and vector code give different bits.

ATen runs such a function in vectors and finishes each thread's share one element at a time. Where
the share ends depends on the number of elements, so on the batch: for silu in FP32 173 of 4,096
elements differ between the two codes (torch 2.13, AVX-512). Here the elements are padded until
every share is whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .original import original

# Two vectors of 16-bit elements in AVX-512: a multiple of every unrolled step ATen takes.
STEP = 64
_GRAIN = 32768

# Functions found to differ; those that were found equal are proven a call at a time by coverage().
NAMES = ("silu", "gelu", "sigmoid", "softplus", "elu", "mish", "exp2", "rsqrt",
         "pow.Tensor_Scalar")  # fmt: skip


def aligned(name: str) -> Callable[..., Tensor]:
    """The function ``aten::name`` on whole vectors only; first argument the elements."""
    kernel = original(name)

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not x.is_floating_point() or x.numel() == 0:
            return kernel(x, *args, **kwargs)  # type: ignore[no-any-return]
        count = x.numel()
        length = padded_length(count, torch.get_num_threads())
        if length == count and x.is_contiguous():
            return kernel(x, *args, **kwargs)  # type: ignore[no-any-return]
        flat = x.new_zeros(length)
        flat[:count] = x.reshape(-1)
        result: Tensor = kernel(flat, *args, **kwargs)
        return result[:count].view(x.shape)

    return call


def padded_length(count: int, threads: int) -> int:
    """The least length, at least ``count``, that ATen splits over threads in multiples of STEP."""
    length = math.ceil(count / STEP) * STEP
    while length > _GRAIN:
        used = min(threads, math.ceil(length / _GRAIN))
        if math.ceil(length / used) % STEP == 0:
            break
        length += STEP
    return length
