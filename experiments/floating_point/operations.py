"""The operations of a model, asked for one row: alone, and with more rows beside it.

Each operation answers the same question at every batch size: ``row(size)`` is the result for the
first sequence when ``size`` of them are computed together. Mathematically it does not depend on
``size``. ``exact`` is the same in float64 from the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from nondet.invariant.op import attend

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Sizes:
    """Shapes. product: (inner, outer) of each matrix; width: of a norm; heads and keys: of
    attention; most: largest batch; most_attention: sequences or queries of attention at most;
    vocabulary: of a long sum."""

    products: tuple[tuple[int, int], ...]
    width: int
    heads: int
    kv_heads: int
    head: int
    keys: int
    most: int
    most_attention: int
    vocabulary: int

    @property
    def batches(self) -> list[int]:
        """1, 2, 4, ... up to the largest, and an odd one."""
        return sorted({3, *(2**power for power in range(self.most.bit_length()))})


# Rows of the long sum, whose numbers would otherwise fill the memory.
LONG_ROWS = 256
# Products of SmolLM2-135M on a CPU; of Qwen3-8B on a GPU.
CPU = Sizes(((576, 1536), (1536, 576)), 576, 9, 3, 64, 256, 256, 32, 49152)
GPU = Sizes(((4096, 4096), (12288, 4096)), 4096, 32, 8, 128, 1024, 2048, 32, 151936)


@dataclass(frozen=True)
class Operation:
    """One question. ``row(size, invariant)``: the first row's result among ``size`` rows."""

    name: str
    what: str
    shape: str
    most: int
    row: Callable[[int, bool], Tensor]
    exact: Callable[[], Tensor]


def operations(sizes: Sizes, dtype: torch.dtype, device: str, seed: int = 0) -> list[Operation]:
    """All operations of one dtype, from seeded normal numbers (drawn on the CPU)."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype).to(device)

    found = [_product(normal(sizes.most, k), normal(k, n), sizes) for k, n in sizes.products]
    x, weight = normal(sizes.most, sizes.width), normal(sizes.width)
    found += [_rms_norm(x, weight, sizes), _rms_norm_written(x, weight, sizes)]
    found.append(_softmax(normal(sizes.most, 8 * sizes.width) * 4, sizes))
    found.append(_sum(normal(min(sizes.most, LONG_ROWS), sizes.vocabulary)))
    q = normal(sizes.most_attention, sizes.heads, 1, sizes.head)
    k, v = (normal(sizes.most_attention, sizes.kv_heads, sizes.keys, sizes.head) for _ in range(2))
    found.append(_decode(q, k, v, sizes))
    many = normal(1, sizes.heads, sizes.most_attention, sizes.head)
    found.append(_queries(many, k[:1], v[:1], sizes))
    return found


def _product(x: Tensor, weight: Tensor, sizes: Sizes) -> Operation:
    k, n = weight.shape
    return Operation(
        f"product {k} x {n}",
        "matrix product, rows",
        f"(M, {k}) x ({k}, {n})",
        sizes.most,
        lambda size, invariant: torch.mm(x[:size], weight)[0],
        lambda: x[0].double() @ weight.double(),
    )


def _exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    row = x[0].double()
    return row * torch.rsqrt(row.square().mean() + 1e-5) * weight.double()


def _rms_norm(x: Tensor, weight: Tensor, sizes: Sizes) -> Operation:
    return Operation(
        "RMSNorm, fused",
        "torch's rms_norm, rows",
        f"(M, {sizes.width})",
        sizes.most,
        lambda size, invariant: F.rms_norm(x[:size], (sizes.width,), weight, 1e-5)[0],
        lambda: _exact_norm(x, weight),
    )


def _rms_norm_written(x: Tensor, weight: Tensor, sizes: Sizes) -> Operation:
    def row(size: int, invariant: bool) -> Tensor:
        wide = x[:size].float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (weight * scaled.to(x.dtype))[0]

    return Operation("RMSNorm, as models write it", "pow, mean, rsqrt in FP32, rows",
                     f"(M, {sizes.width})", sizes.most, row,
                     lambda: _exact_norm(x, weight))  # fmt: skip


def _softmax(x: Tensor, sizes: Sizes) -> Operation:
    return Operation(
        "softmax",
        "over the last dimension, rows",
        f"(M, {x.shape[1]})",
        sizes.most,
        lambda size, invariant: torch.softmax(x[:size], -1)[0],
        lambda: torch.softmax(x[0].double(), -1),
    )


def _sum(x: Tensor) -> Operation:
    return Operation(
        "sum of a long row",
        "over the last dimension, rows",
        f"(M, {x.shape[1]})",
        x.shape[0],
        lambda size, invariant: x[:size].sum(-1)[:1],
        lambda: x[0].double().sum()[None],
    )


def repeated(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values once for every query head that shares them, as transformers does."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, invariant: bool) -> Tensor:
    """Attention as a transformers model calls it: torch's sdpa, or our operation."""
    if invariant:
        return attend(q, k, v, mask, q.shape[-1] ** -0.5, False)
    out: Tensor = F.scaled_dot_product_attention(q, repeated(k, q), repeated(v, q), mask)
    return out


def exact_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The formula in float64; mask: bool, True is seen."""
    scores = q.double() @ repeated(k, q).double().transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ repeated(v, q).double()


def last_queries(queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Causal mask (1, 1, queries, keys) of the last queries of a sequence; None for one."""
    if queries == 1:
        return None
    return torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _decode(q: Tensor, k: Tensor, v: Tensor, sizes: Sizes) -> Operation:
    return Operation(
        "attention, decode",
        "one query a sequence, M sequences",
        f"(M, {sizes.heads}, 1, {sizes.head}), {sizes.keys} keys",
        sizes.most_attention,
        lambda size, invariant: attention(q[:size], k[:size], v[:size], None, invariant)[0].ravel(),
        lambda: exact_attention(q[:1], k[:1], v[:1], None)[0].ravel(),
    )


def _queries(q: Tensor, k: Tensor, v: Tensor, sizes: Sizes) -> Operation:
    def row(size: int, invariant: bool) -> Tensor:
        mask = last_queries(size, sizes.keys, q.device)
        return attention(q[:, :, -size:], k, v, mask, invariant)[0, :, -1].ravel()

    return Operation("attention, queries", "the last query of a sequence, M queries at once",
                     f"(1, {sizes.heads}, M, {sizes.head}), {sizes.keys} keys",
                     sizes.most_attention, row,
                     lambda: exact_attention(q[:, :, -1:], k, v, None).ravel())  # fmt: skip
