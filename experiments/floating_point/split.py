"""Attention over a cache: 80 cached and 48 new tokens against 128 new ones.

A kernel that walks the cached keys and the new keys each in blocks of 32 takes 3 + 2 blocks for
80 + 48 and 4 for 128: the same sum, cut in other places (the example of Thinking Machines,
"Defeating Nondeterminism in LLM Inference"). Here by hand in plain PyTorch, by torch's sdpa, and by
our operation, for the last 48 tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.floating_point.operations import (
    DTYPES,
    Sizes,
    attention,
    exact_attention,
    last_queries,
    repeated,
)
from nondet.invariant import invariant
from nondet.invariant.bits import differing

CACHED, NEW, BLOCK = 80, 48, 32
Cuts = list[tuple[int, int]]


def cuts(*parts: int, block: int = BLOCK) -> Cuts:
    """Key ranges of the blocks when each part is cut by itself: (80, 48) gives 3 + 2 of them."""
    found, start = [], 0
    for part in parts:
        end = start + part
        found += [(low, min(low + block, end)) for low in range(start, end, block)]
        start = end
    return found


def by_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, blocks: Cuts) -> Tensor:
    """Attention with a running maximum and sum over blocks of keys (Milakov and Gimelshein 2018),
    accumulated in FP32 as fast kernels do. q (B, H, T, D); k, v (B, H, S, D); mask True: seen."""
    best = torch.full((*q.shape[:-1], 1), -torch.inf, device=q.device)
    total = torch.zeros_like(best)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], device=q.device)
    for low, high in blocks:
        scores = (q @ k[:, :, low:high].transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~mask[..., low:high], -torch.inf)
        new = torch.maximum(best, scores.amax(-1, keepdim=True))
        safe = torch.where(new == -torch.inf, 0.0, new)
        scale, weights = torch.exp(best - safe), torch.exp(scores - safe)
        total = total * scale + weights.sum(-1, keepdim=True)
        out = out * scale + (weights.to(v.dtype) @ v[:, :, low:high]).float()
        best = new
    return (out / total).to(q.dtype)


def pairs(q: Tensor, k: Tensor, v: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Each way's results for the new tokens: from 128 new tokens, and from 80 cached + 48 new.

    The blocks by hand also with cuts at multiples of 32 from the first key, whatever is cached.
    """
    keys = CACHED + NEW
    mask = last_queries(NEW, keys, q.device)
    assert mask is not None
    whole_mask = last_queries(keys, keys, q.device)
    late = q[:, :, CACHED:]
    wide_k, wide_v = repeated(k, q), repeated(v, q)
    one = by_blocks(late, wide_k, wide_v, mask, cuts(keys))
    two = by_blocks(late, wide_k, wide_v, mask, cuts(CACHED, NEW))
    whole = F.scaled_dot_product_attention(q, wide_k, wide_v, is_causal=True)[:, :, CACHED:]
    chunk = attention(late, k, v, mask, invariant=False)
    with invariant(device=q.device):
        ours = attention(q, k, v, whole_mask, invariant=True)[:, :, CACHED:]
        ours_chunk = attention(late, k, v, mask, invariant=True)
    return {
        "by hand, 4 blocks / 3 + 2": (one, two),
        "by hand, fixed cuts": (one, by_blocks(late, wide_k, wide_v, mask, cuts(keys))),
        "torch's sdpa": (whole, chunk),
        "ours": (ours, ours_chunk),
    }


def rows(sizes: Sizes, device: str, seed: int = 0) -> list[dict[str, Any]]:
    """One line a way and dtype: elements that differ, and the distance from float64 of both."""
    found = []
    for name, dtype in DTYPES.items():
        draw = torch.Generator().manual_seed(seed)
        keys = CACHED + NEW
        q, k, v = (
            torch.randn(1, heads, keys, sizes.head, generator=draw).to(dtype).to(device)
            for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads)
        )
        exact = exact_attention(q, k, v, last_queries(keys, keys, q.device))[:, :, CACHED:]
        for way, (whole, split) in pairs(q, k, v).items():
            found.append({
                "way": way, "dtype": name, "elements": whole.numel(),
                "differing": differing(whole, split),
                "largest": float((whole.double() - split.double()).abs().max()),
                "error_whole": float((whole.double() - exact).norm() / exact.norm()),
                "error_split": float((split.double() - exact).norm() / exact.norm()),
            })  # fmt: skip
    return found
