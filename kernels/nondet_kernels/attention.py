"""Attention whose bits do not depend on how the keys came in.

    out_i = sum_j p_ij v_j / sum_j p_ij,   p_ij = exp(scale q_i k_j)

Keys are numbered from the sequence's own first real token, so that padding does not shift them,
and are taken in blocks of ``BLOCK`` and splits of ``SPLIT``. Within a split, blocks are accumulated
in ascending order; the splits' sums are added in ascending order. A prefill program walks the
splits; at decode each split has its own program and the last one to finish adds them up: the same
additions in the same order, so prefill, chunked prefill and decode give equal bits.

The running maximum is rounded up to a whole power of two, in the base-2 domain. Every rescaling is
then exact, and it does not matter when, or in how many steps, the maximum was found.
"""

from __future__ import annotations

import math

import torch

from .matmul import scratch
from .support import (
    cdiv,
    divide,
    far_sum,
    jit,
    jit_free,
    next_power_of_2,
    on_device,
    power_of_two,
    processors,
    require,
    tl,
)

BLOCK = 128
"""Keys of a block; see ``block_of`` for the types and widths that take fewer."""
SPLIT = 256
"""Keys of a split: small enough that one sequence fills the GPU at decode."""


def attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True,
                        scale: float | None = None, window: int | None = None,
                        key_start: torch.Tensor | None = None,
                        key_end: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """Plain PyTorch in float64 for q (B, H, Lq, D) and k, v (B, Hkv, Lk, D); rounded once."""
    heads, keys = q.shape[1] // k.shape[1], k.shape[2]
    wide_k, wide_v = (t.double().repeat_interleave(heads, 1) for t in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = (q.double() @ wide_k.transpose(-1, -2)) * scale
    j = torch.arange(keys, device=q.device)
    none = torch.zeros(q.shape[0], dtype=torch.int64, device=q.device)
    start = (none if key_start is None else key_start).view(-1, 1, 1, 1)
    end = (none + keys if key_end is None else key_end).view(-1, 1, 1, 1)
    i = end - q.shape[2] + torch.arange(q.shape[2], device=q.device).view(-1, 1)
    seen = (j >= start) & (j < end)
    if causal:
        seen = seen & (j <= i)
    if window is not None:
        seen = seen & (j > i - window)
    s = s.masked_fill(~seen, -math.inf)
    # Keys nobody may see must not reach the product, whatever they hold.
    wide_v = wide_v.masked_fill(~seen.any(-2)[..., None], 0.0)
    return (torch.softmax(s, -1).nan_to_num(0.0) @ wide_v).to(q.dtype)


@jit
def blocks(q, m, l, acc, k_ptr, v_ptr, lo, hi, first, last, factor, stride_kl, stride_vl,
           D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr, BN: tl.constexpr,
           MASKED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Accumulate keys lo <= j < hi (lo a multiple of BN); row r sees first[r] <= j < last[r]."""
    n, d = tl.arange(0, BN), tl.arange(0, DP)
    k_at = n[None, :] * stride_kl + d[:, None]
    v_at = n[:, None] * stride_vl + d[None, :]
    scale = tl.full((q.shape[0], BN), factor, tl.float32)
    for base in range(lo, hi, BN):
        k_block = k_ptr + tl.cast(base, tl.int64) * stride_kl + k_at
        v_block = v_ptr + tl.cast(base, tl.int64) * stride_vl + v_at
        if MASKED:
            k = tl.load(k_block, mask=(n[None, :] < hi - base) & (d[:, None] < D), other=0.0)
            v = tl.load(v_block, mask=(n[:, None] < hi - base) & (d[None, :] < D), other=0.0)
        elif D == DP:
            k = tl.load(k_block)
            v = tl.load(v_block)
        else:
            k = tl.load(k_block, mask=d[:, None] < D, other=0.0)
            v = tl.load(v_block, mask=d[None, :] < D, other=0.0)
        s = tl.dot(q, k, input_precision=PRECISION)
        if MASKED:
            key = base + n[None, :]
            s = tl.where((key >= first[:, None]) & (key < last[:, None]), s, float("-inf"))
        new = tl.maximum(m, tl.ceil(tl.max(s, axis=1) * factor))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2(tl.fma(s, scale, tl.broadcast_to(-safe[:, None], s.shape)))
        shrink = power_of_two(m - safe)
        # The weights as the product will see them: their rounding then cancels in the quotient.
        p = p.to(DOT)
        l = l * shrink + far_sum(p.to(tl.float32))
        acc = acc * shrink[:, None]
        acc = tl.dot(p, v.to(DOT), acc, input_precision=PRECISION)
        m = new
    return m, l, acc


@jit
def merge(m, l, acc, m2, l2, acc2):
    """Add the next split's sums; every factor is a power of two, so only the additions round."""
    new = tl.maximum(m, m2)
    safe = tl.where(new == float("-inf"), 0.0, new)
    a, b = power_of_two(m - safe), power_of_two(m2 - safe)
    return new, l * a + l2 * b, acc * a[:, None] + acc2 * b[:, None]


@jit
def one_split(q, k_ptr, v_ptr, s, keys, full, first, last, low, factor, stride_kl, stride_vl,
              BM: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
              BN: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """(maximum, sum, accumulator) of split s: blocks that all rows see whole, then the others."""
    m = tl.full((BM,), float("-inf"), tl.float32)
    l = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, DP), dtype=tl.float32)
    lo = tl.maximum(s * SPLIT, low // BN * BN)
    hi = tl.minimum(s * SPLIT + SPLIT, keys)
    middle = lo
    if not WINDOW:
        middle = tl.maximum(tl.minimum(hi, full) // BN * BN, lo)
        m, l, acc = blocks(q, m, l, acc, k_ptr, v_ptr, lo, middle, first, last, factor, stride_kl,
                           stride_vl, D, DP, DOT, BN, False, PRECISION)  # fmt: skip
    return blocks(q, m, l, acc, k_ptr, v_ptr, middle, hi, first, last, factor, stride_kl,
                  stride_vl, D, DP, DOT, BN, True, PRECISION)  # fmt: skip


@jit_free("LQ", "LK", "NSPLITS", "G")
def attention_kernel(q_ptr, k_ptr, v_ptr, o_ptr, ws_ptr, counter_ptr, cu_q, cu_k, start_ptr,
                     end_ptr, LQ, LK, NSPLITS, window, factor,
                     stride_qb, stride_qh, stride_ql, stride_kb, stride_kh, stride_kl,
                     stride_vb, stride_vh, stride_vl, stride_ob, stride_oh, stride_ol,
                     G, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
                     BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
                     CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VARLEN: tl.constexpr,
                     START: tl.constexpr, END: tl.constexpr, PARALLEL: tl.constexpr,
                     PRECISION: tl.constexpr):  # fmt: skip
    """Rows of a tile are (query, head of the group) pairs that share a key head.

    Grid (row tiles, key heads, sequences, times splits if PARALLEL).
    """
    head = tl.program_id(1).to(tl.int64)
    b = (tl.program_id(2) // NSPLITS).to(tl.int64) if PARALLEL else tl.program_id(2).to(tl.int64)
    # The last tiles see the most keys: start them first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if VARLEN:
        q0, k0 = tl.load(cu_q + b).to(tl.int64), tl.load(cu_k + b).to(tl.int64)
        q_len = (tl.load(cu_q + b + 1) - q0).to(tl.int32)
        end = (tl.load(cu_k + b + 1) - k0).to(tl.int32)
        q_ptr += q0 * stride_ql
        o_ptr += q0 * stride_ol
        k_ptr += k0 * stride_kl
        v_ptr += k0 * stride_vl
    else:
        q_len, end = LQ, LK
        if END:
            end = tl.load(end_ptr + b).to(tl.int32)
        q_ptr += b * stride_qb
        o_ptr += b * stride_ob
        k_ptr += b * stride_kb
        v_ptr += b * stride_vb
    start = 0
    if START:
        start = tl.load(start_ptr + b).to(tl.int32)
    if tile * BM >= q_len * G:
        return
    q_ptr += head * G * stride_qh
    o_ptr += head * G * stride_oh
    k_ptr += head * stride_kh + start * tl.cast(stride_kl, tl.int64)
    v_ptr += head * stride_vh + start * tl.cast(stride_vl, tl.int64)
    row = tile * BM + tl.arange(0, BM)
    query, member = row // G, row % G
    real = query < q_len
    # Positions count from the first real key.
    keys = end - start
    position = keys - q_len + query
    last = tl.where(real, keys, 0)
    if CAUSAL:
        last = tl.minimum(tl.maximum(position + 1, 0), last)
    first = tl.zeros((BM,), dtype=tl.int32)
    if WINDOW:
        first = tl.maximum(position - window + 1, 0)
    top = tl.max(last, axis=0)
    full = tl.min(tl.where(real, last, 2147483647), axis=0)
    low = tl.min(tl.where(real, first, 2147483647), axis=0)
    d = tl.arange(0, DP)
    at = query.to(tl.int64)[:, None]
    q = tl.load(q_ptr + at * stride_ql + member[:, None] * stride_qh + d[None, :],
                mask=real[:, None] & (d[None, :] < D), other=0.0)  # fmt: skip
    s_lo = tl.minimum(low, top) // SPLIT
    s_hi = tl.maximum(tl.cdiv(top, SPLIT), s_lo + 1)
    out = o_ptr + at * stride_ol + member[:, None] * stride_oh + d[None, :]
    mask = real[:, None] & (d[None, :] < D)
    m = tl.full((BM,), float("-inf"), tl.float32)
    l = tl.zeros((BM,), dtype=tl.float32)
    acc = tl.zeros((BM, DP), dtype=tl.float32)
    if PARALLEL:
        s = tl.program_id(2) % NSPLITS
        if (s < s_lo) | (s >= s_hi):
            return
        m2, l2, acc2 = one_split(q, k_ptr, v_ptr, s, top, full, first, last, low, factor, stride_kl,
                                 stride_vl, BM, D, DP, DOT, BN, SPLIT, WINDOW, PRECISION)  # fmt: skip
        group = (b * tl.num_programs(1) + head) * tl.num_programs(0) + tile
        r, space = tl.arange(0, BM), BM * (DP + 2)
        mine = ws_ptr + group * NSPLITS * space
        tl.store(mine + s * space + r, m2)
        tl.store(mine + s * space + BM + r, l2)
        cell = 2 * BM + r[:, None] * DP + d[None, :]
        tl.store(mine + s * space + cell, acc2)
        tl.debug_barrier()
        done = tl.atomic_add(counter_ptr + group, 1, sem="acq_rel", scope="gpu")
        if done != s_hi - s_lo - 1:
            return
        for base in range(s_lo, s_hi, 4):
            # Four splits in flight; one that does not exist merges as nothing.
            for i in tl.static_range(4):
                here = (row < q_len * G) & (base + i < s_hi)
                part = mine + (base + i) * space
                m2 = tl.load(part + r, here, other=float("-inf"), cache_modifier=".cg")
                l2 = tl.load(part + BM + r, here, other=0.0, cache_modifier=".cg")
                acc2 = tl.load(part + cell, here[:, None], other=0.0, cache_modifier=".cg")
                m, l, acc = merge(m, l, acc, m2, l2, acc2)
        tl.store(counter_ptr + group, 0)
    else:
        for s in range(s_lo, s_hi):
            m2, l2, acc2 = one_split(q, k_ptr, v_ptr, s, top, full, first, last, low, factor,
                                     stride_kl, stride_vl, BM, D, DP, DOT, BN, SPLIT, WINDOW,
                                     PRECISION)  # fmt: skip
            m, l, acc = merge(m, l, acc, m2, l2, acc2)
    # A row that sees no key is zero, not NaN; and zero has one sign.
    whole = tl.broadcast_to(tl.where(l == 0.0, 1.0, l)[:, None], acc.shape)
    o = divide(acc, whole) + 0.0
    tl.store(out, o.to(o_ptr.dtype.element_ty), mask)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True,
              scale: float | None = None, window: int | None = None,
              key_start: torch.Tensor | None = None, key_end: torch.Tensor | None = None,
              cu_seqlens_q: torch.Tensor | None = None, cu_seqlens_k: torch.Tensor | None = None,
              max_q: int | None = None, max_k: int | None = None, allow_tf32: bool = False,
              parallel: bool | None = None) -> torch.Tensor:  # fmt: skip
    """Grouped-query attention, batch-invariant and independent of prefill, chunks and decode.

    Queries are the last ones of their sequence: with Lq queries and n keys, query i stands at
    position n - Lq + i.

    Args:
        q: (B, H, Lq, D), any strides; D from 1 to 256. With ``cu_seqlens_q``: (T, H, D).
        k, v: (B, Hkv, Lk, D), H a multiple of Hkv. With ``cu_seqlens_k``: (Tk, Hkv, D).
        causal: a query sees no key after itself.
        scale: factor of the scores, 1 / sqrt(D) if not given.
        window: a query sees this many keys, itself included (needs ``causal``).
        key_start: (B,) index of each sequence's first real key: left padding. Queries before it
            give zeros.
        key_end: (B,) number of keys written so far, for a cache larger than its content.
        cu_seqlens_q, cu_seqlens_k: (B + 1,) offsets of sequences laid end to end.
        max_q, max_k: longest sequence among them; read from the device if not given.
        allow_tf32: let FP32 inputs use the tensor cores' TF32 mode.
        parallel: one program a split (decode) or one a row tile (prefill). Never changes a bit;
            chosen from the sizes if not given.

    Returns:
        Same shape as q. A later key that is NaN or infinite can reach earlier queries of its own
        sequence within a block, as in other implementations; never another sequence.
    """
    varlen = cu_seqlens_q is not None
    if varlen != (cu_seqlens_k is not None):
        raise ValueError("attention: cu_seqlens_q and cu_seqlens_k go together")
    if window is not None and (not causal or window < 1):
        raise ValueError(f"attention: window={window} needs causal and at least 1")
    device = require(q, k, v)
    if not q.dtype == k.dtype == v.dtype or q.dtype == torch.float64:
        raise TypeError(f"attention: one of bf16, fp16, fp32 expected: {q.dtype}, {k.dtype}")
    if varlen:
        assert cu_seqlens_q is not None and cu_seqlens_k is not None
        max_q = int(cu_seqlens_q.diff().max()) if max_q is None else max_q
        max_k = int(cu_seqlens_k.diff().max()) if max_k is None else max_k
        q4, k4, v4 = (t.transpose(0, 1)[None] for t in (q, k, v))
        count = cu_seqlens_q.numel() - 1
    else:
        q4, k4, v4, count = q, k, v, q.shape[0]
        max_q, max_k = q.shape[2], k.shape[2]
    if q4.shape[1] % k4.shape[1] or q4.shape[3] != k4.shape[3] or k4.shape != v4.shape:
        raise ValueError(f"attention: shapes {q.shape}, {k.shape}, {v.shape} do not fit")
    out = torch.empty(q.shape, dtype=q.dtype, device=device)
    if out.numel() == 0:
        return out
    if max_k == 0:
        return out.zero_()
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if scale < 0:
        q4, scale = -q4, -scale
    o4 = out.transpose(0, 1)[None] if varlen else out
    q4, k4, v4 = (t if t.stride(3) == 1 else t.contiguous() for t in (q4, k4, v4))
    with on_device(device):
        _launch(q4, k4, v4, o4, (max_q, max_k, count), causal, scale, window, key_start, key_end,
                cu_seqlens_q, cu_seqlens_k, allow_tf32, parallel)  # fmt: skip
    return out


def _launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
            sizes: tuple[int, int, int], causal: bool, scale: float, window: int | None,
            start: torch.Tensor | None, end: torch.Tensor | None, cu_q: torch.Tensor | None,
            cu_k: torch.Tensor | None, tf32: bool, parallel: bool | None) -> None:  # fmt: skip
    (max_q, max_k, count), heads = sizes, k.shape[1]
    group, width = q.shape[1] // heads, q.shape[3]
    padded = max(16, next_power_of_2(width))
    splits = cdiv(max_k, SPLIT)
    bm, warps, stages = shape_of(max_q * group, padded, q.element_size())
    tiles = cdiv(max_q * group, bm)
    if parallel is None:
        parallel = splits > 1 and bm == 16 and tiles * heads * count < 2 * processors(q.device)
    work, counters = o, o
    if parallel:
        groups = count * heads * tiles
        work, counters = scratch(q, groups, groups * splits * bm * (padded + 2))
    empty = o if start is None else start
    attention_kernel[(tiles, heads, count * splits if parallel else count)](
        q, k, v, o, work, counters, o if cu_q is None else cu_q, o if cu_k is None else cu_k,
        empty, o if end is None else end, max_q, max_k, splits, window or 0,
        scale * 1.4426950408889634, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        *o.stride()[:3], group, D=width, DP=padded,
        DOT={2: tl.bfloat16 if q.dtype == torch.bfloat16 else tl.float16}.get(
            q.element_size(), tl.float32
        ),
        BM=bm, BN=block_of(padded, q.element_size()), SPLIT=SPLIT, CAUSAL=causal,
        WINDOW=window is not None, VARLEN=cu_q is not None, START=start is not None,
        END=end is not None, PARALLEL=parallel, PRECISION="tf32" if tf32 else "ieee",
        num_warps=warps, num_stages=stages, enable_fp_fusion=False)  # fmt: skip


def block_of(width: int, size: int) -> int:
    """Keys of a block: part of the order of additions, so a function of width and type alone."""
    return BLOCK // (1 if size == 2 else 2) // (1 if width <= 128 else 2)


def shape_of(rows: int, width: int, size: int) -> tuple[int, int, int]:
    """Rows of a tile, warps and stages for a sequence's (query, head) rows; never changes a bit."""
    if size == 4:
        return (16, 4, 1) if rows <= 16 else (32, 8, 1)
    if rows <= 64:
        return 16, 4, 2
    if width > 128:
        return 64, 8, 2
    return (64, 4, 2) if width <= 64 else (128, 8, 2)
