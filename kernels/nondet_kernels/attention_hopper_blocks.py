"""The arithmetic of ``attention_hopper``: what warps that copy and warps that compute do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )

    # Triton 3.7 gave it the second name.
    block_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
except ImportError:  # No Triton, or one without these.
    gluon = gl = fence_async_shared = mbarrier = block_barrier = None


def jit(function: Callable[..., Any]) -> Any:
    """``gluon.jit`` where it exists, else the function itself (never called)."""
    return function if gluon is None else gluon.jit(function)


def jit_free(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """``jit`` that compiles one kernel for all values of the integer arguments ``names``."""

    def decorate(function: Callable[..., Any]) -> Any:
        return function if gluon is None else gluon.jit(function, do_not_specialize=list(names))

    return decorate


@jit
def power_of_two(e):
    """As ``arithmetic.power_of_two``."""
    biased = gl.maximum(e, -127.0).to(gl.int32) + 127
    return (biased << 23).to(gl.float32, bitcast=True)


@jit
def far_sum(x, layout: gl.constexpr):
    """As ``arithmetic.far_sum``; the result in ``layout``."""
    for _ in gl.static_range(12):
        if x.shape[1] > 1:
            x = gl.sum(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), axis=1)
    return gl.convert_layout(gl.reshape(x, (x.shape[0],)), layout)


@jit
def soften(s, j, middle, last, n, factor, kind: gl.constexpr, s_layout: gl.constexpr,
           s_row: gl.constexpr):  # fmt: skip
    """(weights, maximum, sum) of block j's scores, as ``attention_blocks.block_sums``."""
    if j >= middle:
        seen = (j * s.shape[1] + n)[None, :] < last[:, None]
        s = gl.where(seen, s, float("-inf"))
    m = gl.ceil(gl.max(s, axis=1) * factor)
    safe = gl.where(m == float("-inf"), 0.0, m)
    zero = gl.full(s.shape, 0.0, gl.float32, s_layout)
    p = gl.exp2(gl.fma(s, zero + factor, zero - safe[:, None])).to(kind)
    return p, m, far_sum(p.to(gl.float32), s_row)


@jit
def join(m, l, acc, m2, l2, acc2, o_layout: gl.constexpr, o_row: gl.constexpr):
    """Add the next split's sums, as ``attention_blocks.merge``."""
    new = gl.maximum(m, m2)
    safe = gl.where(new == float("-inf"), 0.0, new)
    a, b = power_of_two(m - safe), power_of_two(m2 - safe)
    wide = gl.full(acc.shape, 0.0, gl.float32, o_layout) + gl.convert_layout(b, o_row)[:, None]
    total = gl.fma(acc2, wide, acc * gl.convert_layout(a, o_row)[:, None])
    return new, gl.fma(l2, b, l * a), total


@jit
def produce(k_desc, v_desc, k_smem, v_smem, k_full, v_full, k_empty, v_empty, row, column, blocks,
            BN: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Copy the blocks of keys and values, each as soon as its place is free."""
    for j in range(blocks):
        at, phase = j % STAGES, (j // STAGES) & 1
        mbarrier.wait(k_empty.index(at), phase ^ 1)
        mbarrier.expect(k_full.index(at), BN * D * 2)
        tma.async_copy_global_to_shared(
            k_desc, [row + j * BN, column], k_full.index(at), k_smem.index(at)
        )
        mbarrier.wait(v_empty.index(at), phase ^ 1)
        mbarrier.expect(v_full.index(at), BN * D * 2)
        tma.async_copy_global_to_shared(
            v_desc, [row + j * BN, column], v_full.index(at), v_smem.index(at)
        )


@jit
def write(acc, l, row0, q_len, o_ptr, stride_oh, stride_ol, G, D: gl.constexpr,
          o_layout: gl.constexpr, o_row: gl.constexpr):  # fmt: skip
    """Weighted means of the rows from ``row0`` on, as ``attention_blocks.quotient``."""
    HALF: gl.constexpr = acc.shape[0]
    l = gl.convert_layout(l, o_row)
    inverse = gl.div_rn(gl.full([HALF], 1.0, gl.float32, o_row), gl.where(l == 0.0, 1.0, l))
    rows = row0 + gl.arange(0, HALF, layout=o_row)
    d = gl.arange(0, D, layout=gl.SliceLayout(0, o_layout))
    place = (rows // G).to(gl.int64) * stride_ol + (rows % G) * stride_oh
    mask = ((rows // G) < q_len)[:, None] & (d < D)[None, :]
    y = (acc * inverse[:, None] + 0.0).to(o_ptr.dtype.element_ty)
    gl.store(o_ptr + (place[:, None] + d[None, :]), y, mask)


@jit
def consume(q_smem, o_ptr, k_smem, v_smem, k_full, v_full, k_empty, v_empty, middle, blocks, row0,
            q_len, keys, top, factor, stride_oh, stride_ol, G, BN: gl.constexpr, D: gl.constexpr,
            STAGES: gl.constexpr, CAUSAL: gl.constexpr):  # fmt: skip
    """The rows from ``row0`` on, as many as ``q_smem`` has, over all blocks."""
    HALF: gl.constexpr = q_smem.shape[0]
    kind: gl.constexpr = k_smem.dtype
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_row: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_row: gl.constexpr = gl.SliceLayout(1, o_layout)
    v_layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [2, 16] if D == 128 else [4, 8], [4, 1], [1, 0]
    )
    query = (row0 + gl.arange(0, HALF, layout=s_row)) // G
    last = gl.where(query < q_len, keys, 0)
    if CAUSAL:
        last = gl.minimum(gl.maximum(keys - q_len + query + 1, 0), last)
    n = gl.arange(0, BN, layout=gl.SliceLayout(0, s_layout))
    m = gl.full([HALF], float("-inf"), gl.float32, s_row)
    l = gl.full([HALF], 0.0, gl.float32, s_row)
    acc = gl.full([HALF, D], 0.0, gl.float32, o_layout)
    zero = gl.full([HALF, BN], 0.0, gl.float32, s_layout)
    none = gl.full([HALF, D], 0.0, gl.float32, o_layout)
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma(q_smem, k_smem.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_empty.index(0), count=1)
    for j in range(blocks - 1):
        at, phase = j % STAGES, (j // STAGES) & 1
        after, later = (j + 1) % STAGES, ((j + 1) // STAGES) & 1
        mbarrier.wait(k_full.index(after), later)
        ahead = warpgroup_mma(
            q_smem, k_smem.index(after).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        p, m2, l2 = soften(s, j, middle, last, n, factor, kind, s_layout, s_row)
        weights = gl.convert_layout(p, p_layout)
        mbarrier.wait(v_full.index(at), phase)
        part = warpgroup_mma(weights, v_smem.index(at), none, use_acc=False, is_async=True)
        s, part = warpgroup_mma_wait(0, deps=(ahead, part))
        mbarrier.arrive(k_empty.index(after), count=1)
        mbarrier.arrive(v_empty.index(at), count=1)
        m, l, acc = join(m, l, acc, m2, l2, part, o_layout, o_row)
    j = blocks - 1
    at, phase = j % STAGES, (j // STAGES) & 1
    p, m2, l2 = soften(s, j, middle, last, n, factor, kind, s_layout, s_row)
    mbarrier.wait(v_full.index(at), phase)
    if blocks * BN > top:
        # What lies behind the last key may be anything; a weight of zero does not stop a NaN.
        row = gl.arange(0, BN, layout=gl.SliceLayout(1, v_layout))
        v = v_smem.index(at).load(v_layout)
        v_smem.index(at).store(gl.where((j * BN + row)[:, None] < top, v, 0.0))
        fence_async_shared()
    weights = gl.convert_layout(p, p_layout)
    part = warpgroup_mma(weights, v_smem.index(at), none, use_acc=False, is_async=True)
    part = warpgroup_mma_wait(0, deps=(part,))
    m, l, acc = join(m, l, acc, m2, l2, part, o_layout, o_row)
    write(acc, l, row0, q_len, o_ptr, stride_oh, stride_ol, G, D, o_layout, o_row)
