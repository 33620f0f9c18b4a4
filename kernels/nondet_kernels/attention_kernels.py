"""The Triton kernel behind attention: keys in blocks and splits at fixed positions."""

from __future__ import annotations

from .arithmetic import divide, far_sum, power_of_two
from .support import jit, jit_free, tl


@jit
def blocks(q, m, l, acc, k_ptr, v_ptr, lo, hi, first, last, factor, stride_kl, stride_vl,
           D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr, BN: tl.constexpr,
           MASKED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Accumulate keys lo <= j < hi (lo a multiple of BN); row r sees first[r] <= j < last[r]."""
    n, d = tl.arange(0, BN), tl.arange(0, DP)
    v_at = n[:, None] * stride_vl + d[None, :]
    v_in, v_wide = n[:, None], d[None, :] < D
    k_at, k_in, k_wide = n[None, :] * stride_kl + d[:, None], n[None, :], d[:, None] < D
    for base in range(lo, hi, BN):
        k_block = k_ptr + tl.cast(base, tl.int64) * stride_kl + k_at
        v_block = v_ptr + tl.cast(base, tl.int64) * stride_vl + v_at
        if MASKED:
            k = tl.load(k_block, mask=(k_in < hi - base) & k_wide, other=0.0)
            v = tl.load(v_block, mask=(v_in < hi - base) & v_wide, other=0.0)
        elif D == DP:
            k = tl.load(k_block)
            v = tl.load(v_block)
        else:
            k = tl.load(k_block, mask=k_wide, other=0.0)
            v = tl.load(v_block, mask=v_wide, other=0.0)
        s = tl.dot(q, k, input_precision=PRECISION)
        if MASKED:
            key = base + k_in
            seen = (key >= first[:, None]) & (key < last[:, None])
            s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(m, tl.ceil(tl.max(s, axis=1) * factor))
        safe = tl.where(new == float("-inf"), 0.0, new)
        scale = tl.full(s.shape, factor, tl.float32)
        p = tl.exp2(tl.fma(s, scale, tl.broadcast_to(-safe[:, None], s.shape)))
        shrink = power_of_two(m - safe)
        # The weights as the product will see them: their rounding then cancels in the quotient.
        p = p.to(DOT)
        l = l * shrink + far_sum(p.to(tl.float32))
        acc = acc * shrink[:, None]
        acc = tl.dot(p, v, acc, input_precision=PRECISION)
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
def nothing(BM: tl.constexpr, DP: tl.constexpr):
    """(maximum, sum, accumulator) before any key."""
    m = tl.full((BM,), float("-inf"), tl.float32)
    l = tl.zeros((BM,), dtype=tl.float32)
    return m, l, tl.zeros((BM, DP), dtype=tl.float32)


@jit
def one_split(q, k_ptr, v_ptr, s, keys, full, first, last, low, factor, stride_kl, stride_vl,
              BM: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
              BN: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """Sums of split s: first the blocks that all rows see whole, then the others."""
    m, l, acc = nothing(BM, DP)
    lo = tl.maximum(s * SPLIT, low // BN * BN)
    hi = tl.minimum(s * SPLIT + SPLIT, keys)
    middle = lo
    if not WINDOW:
        middle = tl.maximum(tl.minimum(hi, full) // BN * BN, lo)
        m, l, acc = blocks(q, m, l, acc, k_ptr, v_ptr, lo, middle, first, last, factor, stride_kl,
                           stride_vl, D, DP, DOT, BN, False, PRECISION)  # fmt: skip
    return blocks(q, m, l, acc, k_ptr, v_ptr, middle, hi, first, last, factor, stride_kl,
                  stride_vl, D, DP, DOT, BN, True, PRECISION)  # fmt: skip


@jit_free("LQ", "LK", "NSPLITS", "window", "G")
def attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    ws_ptr,
    counter_ptr,
    cu_q,
    cu_k,
    start_ptr,
    end_ptr,
    LQ,
    LK,
    NSPLITS,
    window,
    factor,
    stride_qb,
    stride_qh,
    stride_ql,
    stride_kb,
    stride_kh,
    stride_kl,
    stride_vb,
    stride_vh,
    stride_vl,
    stride_ob,
    stride_oh,
    stride_ol,
    G,
    D: tl.constexpr,
    DP: tl.constexpr,
    DOT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    VARLEN: tl.constexpr,
    START: tl.constexpr,
    END: tl.constexpr,
    PARALLEL: tl.constexpr,
    PRECISION: tl.constexpr,
):
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
    r = tl.arange(0, BM)
    query, member = (tile * BM + r) // G, (tile * BM + r) % G
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
    at, mask = query[:, None].to(tl.int64), real[:, None] & (d[None, :] < D)
    q_at = at * stride_ql + member[:, None] * stride_qh + d[None, :]
    q = tl.load(q_ptr + q_at, mask=mask, other=0.0)
    out = o_ptr + at * stride_ol + member[:, None] * stride_oh + d[None, :]
    s_lo = tl.minimum(low, top) // SPLIT
    s_hi = tl.maximum(tl.cdiv(top, SPLIT), s_lo + 1)
    m, l, acc = nothing(BM, DP)
    if PARALLEL:
        s = tl.program_id(2) % NSPLITS
        if (s < s_lo) | (s >= s_hi):
            return
        m2, l2, acc2 = one_split(
            q,
            k_ptr,
            v_ptr,
            s,
            top,
            full,
            first,
            last,
            low,
            factor,
            stride_kl,
            stride_vl,
            BM,
            D,
            DP,
            DOT,
            BN,
            SPLIT,
            WINDOW,
            PRECISION,
        )
        group = (b * tl.num_programs(1) + head) * tl.num_programs(0) + tile
        space = BM * (DP + 2)
        mine = ws_ptr + group * NSPLITS * space
        cell = 2 * BM + r[:, None] * DP + d[None, :]
        tl.store(mine + s * space + r, m2)
        tl.store(mine + s * space + BM + r, l2)
        tl.store(mine + s * space + cell, acc2, mask)
        tl.debug_barrier()
        done = tl.atomic_add(counter_ptr + group, 1, sem="acq_rel", scope="gpu")
        if done != s_hi - s_lo - 1:
            return
        for base in range(s_lo, s_hi, 4):
            # Four splits in flight; one that does not exist merges as nothing.
            for i in tl.static_range(4):
                part, here = mine + (base + i) * space, base + i < s_hi
                m2 = tl.load(part + r, real & here, other=float("-inf"), cache_modifier=".cg")
                l2 = tl.load(part + BM + r, real & here, other=0.0, cache_modifier=".cg")
                acc2 = tl.load(part + cell, mask & here, other=0.0, cache_modifier=".cg")
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
    tl.store(out, (divide(acc, whole) + 0.0).to(o_ptr.dtype.element_ty), mask)
