"""One order of additions for any number of ranks (TP-invariance, after arXiv 2511.17826).

    y = x W^T,  x (M, K),  W (N, K)

K is cut into L leaves of equal length. Each leaf's product is a batch-invariant product of its own,
kept in FP32; the L results are added by a balanced binary tree,

    ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)),

and the sum is rounded once. Rank r of R owns L / R neighbouring leaves, which is a subtree: it adds
them alone, and the ranks' R sums are gathered and added in the rest of the tree by every rank. So
1, 2, 4 and 8 ranks do the same additions. Adding is a matter of single elements, hence of neither M
nor the device's launch.

Products whose columns are dealt out need no sum, only that a column's bits do not depend on how
many columns the rank holds: a CPU computes fixed blocks of columns, a GPU takes the K slices of the
whole (N, K).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST_LEAVES = 8
# Alignment of torch's own CPU allocations, bytes; MKL may add in another order on another one.
_ALIGN = 64


def leaf_count(k: int) -> int:
    """Leaves of a sum over ``k``, or blocks of ``k`` columns: 8, or the 2 or 4 that divide it."""
    return math.gcd(k, MOST_LEAVES)


def tree_sum(parts: Tensor) -> Tensor:
    """(L, ...) -> (...): neighbours are added pair by pair until one is left.

    With L no power of two the last part waits for the next round. NaN and infinities spread as in
    any addition; -0.0 is kept only where all parts are -0.0.
    """
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        pairs = parts[0:even:2] + parts[1:even:2]
        parts = pairs if even == len(parts) else torch.cat([pairs, parts[even:]])
    return parts[0]


def leaf_products(x: Tensor, weight: Tensor, leaves: int) -> Tensor:
    """The products of ``leaves`` equal parts of K: x (M, K), weight (N, K) -> (leaves, M, N).

    The result is FP32, and rows depend on nothing but themselves.
    """
    if x.device.type == "cuda":
        return leaves_by_triton(x, weight, leaves)
    from nondet.invariant.blocks import product

    parts = []
    length = x.shape[1] // leaves
    for start in range(0, x.shape[1], length):
        # In FP32 from the start, products of 16-bit numbers are exact.
        left = x[:, start : start + length].float()
        right = _settled(weight[:, start : start + length].float())
        parts.append(product(left, right.t()))
    return torch.stack(parts)


def leaves_by_triton(x: Tensor, weight: Tensor, leaves: int) -> Tensor:
    """``leaf_products`` as one batched product of the Triton kernels, a leaf a slice."""
    from nondet_kernels.matmul import bmm
    from nondet_kernels.matmul_plan import generic
    from nondet_kernels.support import processors

    from nondet.invariant.cuda import tf32

    (rows, k), n = x.shape, weight.shape[0]
    return bmm(
        x.reshape(rows, leaves, k // leaves).transpose(0, 1),
        weight.view(n, leaves, k // leaves).permute(1, 2, 0),
        out=x.new_empty(leaves, rows, n, dtype=torch.float32),
        allow_tf32=tf32(),
        # A single leaf would get a tuned plan, whose tiles do not fit with results in FP32.
        how=generic(rows, n, 8 * x.element_size(), 1, processors(x.device), tf32()),
    )


def column_product(x: Tensor, weight: Tensor, bias: Tensor | None, whole: int) -> Tensor:
    """x (M, K), weight (n, K) -> (M, n), as those columns of a layer that has ``whole`` of them."""
    if x.device.type == "cuda":
        return columns_by_triton(x, weight, bias, whole)
    from nondet.invariant.blocks import product

    width = whole // leaf_count(whole)
    parts = []
    for start in range(0, weight.shape[0], width):
        block = _settled(weight[start : start + width])
        added = None if bias is None else bias[start : start + width]
        parts.append(product(x, block.t(), added))
    return torch.cat(parts, dim=1)


def columns_by_triton(x: Tensor, weight: Tensor, bias: Tensor | None, whole: int) -> Tensor:
    """``column_product`` in the K slices of the whole layer, which may differ from the part's."""
    from nondet_kernels.matmul import bmm, linear
    from nondet_kernels.matmul_plan import slices

    from nondet.invariant.cuda import tf32

    n, k = weight.shape
    count = slices(whole, k)
    if slices(n, k) == count:
        return linear(x, weight, bias, allow_tf32=tf32())
    added = None if bias is None else bias.expand(1, x.shape[0], n)
    return bmm(x[None], weight.t()[None], added, count=count, allow_tf32=tf32())[0]


def _settled(weight: Tensor) -> Tensor:
    """Contiguous and aligned as a fresh allocation is, so that a rank's copy is like any other."""
    weight = weight.contiguous()
    return weight if weight.data_ptr() % _ALIGN == 0 else weight.clone()
