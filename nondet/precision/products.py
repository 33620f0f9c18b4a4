"""FP32 activations times weights kept in 16 bits, without an FP32 copy of the weights.

fused   the Triton kernel ``nondet_kernels.mixed`` on a GPU: reads the 16-bit weights as they are.
plain   torch's FP32 product with a block of the weights cast at a time; any device. With
        invariant kernels in force it goes through them like every product.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
BLOCK_ELEMENTS = 1 << 23
"""Weights cast at a time: 32 MiB in FP32. The blocks follow from the weight's shape alone."""


@functools.cache
def choose_product(asked: str, device: torch.device) -> str:
    """``fused`` or ``plain`` for a model on ``device``; ``asked`` may also be auto.

    Raises:
        RuntimeError: fused was asked for where no Triton kernel can run.
    """
    possible = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    if asked == "fused" and not possible:
        raise RuntimeError(f"backend.product=fused needs a GPU and Triton, not {device}")
    return "fused" if possible and asked != "plain" else "plain"


def product(x: Tensor, weight: Tensor, bias: Tensor | None, fused: bool) -> Tensor:
    """``x @ weight.T + bias`` in FP32.

    x: float32 (..., K); weight: (N, K) of any float type; bias: (N,) or None. Result (..., N).
    """
    if fused and weight.dtype in HALVES:
        from nondet_kernels.mixed import mixed_linear

        result: Tensor = mixed_linear(x, weight, bias)
        return result
    return plain_product(x, weight, bias)


def plain_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product with one block of output columns at a time, their weights cast for it."""
    linear = torch.nn.functional.linear
    wide_bias = None if bias is None else bias.float()
    n, k = weight.shape
    step = max(1, BLOCK_ELEMENTS // max(k, 1))
    if weight.dtype == torch.float32 or n <= step:
        return linear(x, weight.float(), wide_bias)
    out = x.new_empty((*x.shape[:-1], n))
    for start in range(0, n, step):
        part = slice(start, start + step)
        out[..., part] = linear(
            x, weight[part].float(), None if wide_bias is None else wide_bias[part]
        )
    return out
