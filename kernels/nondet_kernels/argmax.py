"""argmax that always names the lowest index among equal maxima; NaN counts as the maximum.

A value becomes an integer with the same order, packed above the inverted index, so that the
maximum of the packed integers is the answer in whatever order it is found.
"""

from __future__ import annotations

import torch

from .support import cdiv, jit, next_power_of_2, on_device, require, start, tl

CHUNK = 8192


def argmax_reference(x: torch.Tensor, dim: int | None = None,
                     keepdim: bool = False) -> torch.Tensor:  # fmt: skip
    """Plain PyTorch: the first position that holds the maximum, or the first NaN."""
    flat = x.reshape(-1) if dim is None else x.movedim(dim, -1)
    top = flat.amax(-1, keepdim=True)
    hit = torch.where(top.isnan(), flat.isnan(), flat == top).int()
    index = torch.where(hit.cumsum(-1) == 0, 1, 0).sum(-1)
    if not keepdim:
        return index
    return index.reshape((1,) * x.dim()) if dim is None else index.unsqueeze(dim)


@jit
def argmax_kernel(x_ptr, key_ptr, D, stride, CHUNKS, B: tl.constexpr):
    """Largest (value, lowest index) of one chunk of one row; grid (chunks, rows)."""
    row, chunk = tl.program_id(1).to(tl.int64), tl.program_id(0)
    col = chunk.to(tl.int64) * B + tl.arange(0, B)
    x = tl.load(x_ptr + row * stride + col, col < D, other=float("-inf")).to(tl.float32)
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    order = tl.where(x != x, 0x7FFFFFFF, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    key = (order.to(tl.int64) << 32) | (0xFFFFFFFF - col)
    key = tl.where(col < D, key, -0x7FFFFFFFFFFFFFFF)
    tl.store(key_ptr + row * CHUNKS + chunk, tl.max(key, axis=0))


def argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """``torch.argmax``: int64 index along ``dim`` (of the flattened tensor if None).

    FP64 goes to torch's own argmax, whose comparisons are exact and keep the lower index.

    Raises:
        IndexError: an empty dimension, or ``dim`` out of range.
    """
    if x.dtype == torch.float64 or not x.is_floating_point():
        return torch.argmax(x, dim, keepdim=keepdim)
    device = require(x)
    flat = x.reshape(-1) if dim is None or x.dim() == 0 else x.movedim(dim, -1)
    d = flat.shape[-1]
    if d == 0:
        raise IndexError(f"argmax: dimension {dim} of shape {tuple(x.shape)} is empty")
    lead = flat.shape[:-1]
    rows = flat.reshape(-1, d)
    rows = rows if rows.stride(1) == 1 or d == 1 else rows.contiguous()
    block = min(next_power_of_2(d), CHUNK)
    chunks = cdiv(d, block)
    keys = torch.empty((rows.shape[0], chunks), dtype=torch.int64, device=device)
    with on_device(device):
        for first in range(0, rows.shape[0], 65535):
            part = slice(first, first + 65535)
            start(argmax_kernel, (chunks, keys[part].shape[0], 1),
                  (rows[part], keys[part], d, rows.stride(0), chunks), dict(B=block),
                  dict(num_warps=max(1, min(8, block // 512))))  # fmt: skip
    index = (0xFFFFFFFF - (keys.amax(-1) & 0xFFFFFFFF)).reshape(lead)
    if not keepdim:
        return index
    return index.reshape((1,) * x.dim()) if dim is None else index.unsqueeze(dim)
