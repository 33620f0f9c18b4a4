"""What the CPU computes 16-bit products with; the way they are taken follows it alone."""

from __future__ import annotations

import functools
import platform

import torch


@functools.cache
def widened(dtype: torch.dtype) -> bool:
    """Whether products of this 16-bit type are FP32 products, for want of units in the CPU."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if dtype == torch.bfloat16:
        ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    elif dtype == torch.float16:
        ask = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None)
    else:
        return False
    return ask is not None and not ask()


def has_matrix_units() -> bool:
    """Whether this CPU has AMX, as torch sees it."""
    found = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(found and found())
