"""The Triton kernels behind attention: who computes which split, of which rows and keys.

``attention_kernel`` computes splits, all of a tile in one program or shared out; ``merge_kernel``
adds up what was shared out where that is much. The arithmetic is in ``attention_blocks``.
"""

from __future__ import annotations

from .attention_blocks import add_block, merge, nothing, quotient, walk
from .support import jit, jit_free, tl


@jit
def bounds(b, LQ, LK, cu_q, cu_k, start_ptr, end_ptr, VARLEN: tl.constexpr, START: tl.constexpr,
           END: tl.constexpr):  # fmt: skip
    """(first query row, number of queries, first key row, number of keys) of a sequence."""
    q0, place, q_len, end = tl.cast(0, tl.int64), 0, LQ, LK
    if VARLEN:
        q0, place = tl.load(cu_q + b).to(tl.int64), tl.load(cu_k + b).to(tl.int32)
        q_len = (tl.load(cu_q + b + 1) - q0).to(tl.int32)
        end = tl.load(cu_k + b + 1).to(tl.int32) - place
    elif END:
        end = tl.load(end_ptr + b).to(tl.int32)
    start = 0
    if START:
        start = tl.load(start_ptr + b).to(tl.int32)
    return q0, q_len, place + start, end - start


@jit
def seen_keys(query, q_len, keys, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """(first, last): a row sees the keys first <= j < last; none if it is no real query."""
    last = tl.where(query < q_len, keys, 0)
    first = tl.zeros(query.shape, dtype=tl.int32)
    # Positions count from the first real key.
    if CAUSAL:
        last = tl.minimum(tl.maximum(keys - q_len + query + 1, 0), last)
    if WINDOW:
        first = tl.maximum(keys - q_len + query - window + 1, 0)
    return first, last


@jit
def tile_range(query, q_len, first, last):
    """(last key that a row sees, what all real rows see up to, first key) of a tile's rows."""
    real = query < q_len
    top = tl.max(last, axis=0)
    full = tl.min(tl.where(real, last, 2147483647), axis=0)
    low = tl.min(tl.where(real, first, 2147483647), axis=0)
    return top, full, low


@jit
def split_range(low, top, SPLIT: tl.constexpr):
    """The splits lo <= s < hi that any row of the tile sees; one at least."""
    s_lo = tl.minimum(low, top) // SPLIT
    return s_lo, tl.maximum(tl.cdiv(top, SPLIT), s_lo + 1)


@jit
def add_splits(mine, space, lo, hi, o_ptr, row0, shift, q_len, stride_oh, stride_ol, G, column,
               DOT: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
               PR: tl.constexpr, DC: tl.constexpr, AHEAD: tl.constexpr):  # fmt: skip
    """Merge the stored splits lo <= s < hi of PR rows in order and write their mean.

    ``row0``: number of the tile's first (query, head) row, ``shift``: the first row within it;
    DC columns from ``column`` on.
    """
    r, d = shift + tl.arange(0, PR), column + tl.arange(0, DC)
    query, member = (row0 + r) // G, (row0 + r) % G
    real = query < q_len
    mask = real[:, None] & (d[None, :] < D)
    cell = 2 * BM + r[:, None] * DP + d[None, :]
    m = tl.full((PR,), float("-inf"), tl.float32)
    l = tl.zeros((PR,), dtype=tl.float32)
    acc = tl.zeros((PR, DC), dtype=tl.float32)
    for base in range(lo, hi, AHEAD):
        # AHEAD splits in flight; one that does not exist merges as nothing.
        for i in tl.static_range(AHEAD):
            here = base + i < hi
            source = mine + (base + i) * space
            m2 = tl.load(source + r, real & here, other=float("-inf"), cache_modifier=".cg")
            l2 = tl.load(source + BM + r, real & here, other=0.0, cache_modifier=".cg")
            acc2 = tl.load(source + cell, mask & here, other=0.0, cache_modifier=".cg")
            m, l, acc = merge(m, l, acc, m2, l2, acc2)
    out = query[:, None].to(tl.int64) * stride_ol + member[:, None] * stride_oh + d[None, :]
    tl.store(o_ptr + out, quotient(acc, l, DOT).to(o_ptr.dtype.element_ty), mask)


@jit
def store_splits(q, mine, space, lo, hi, k_ptr, v_ptr, k_desc, v_desc, place, top, first, last,
                 factor, stride_kl, stride_vl, plane, head, mask, D: tl.constexpr,
                 DP: tl.constexpr, DOT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 SPLIT: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Compute the splits lo <= s < hi and leave each one's sums in the workspace ``mine``."""
    r = tl.arange(0, BM)
    cell = 2 * BM + r[:, None] * DP + tl.arange(0, DP)[None, :]
    m, l, acc = nothing(BM, DP)
    for j in range(lo * (SPLIT // BN), hi * (SPLIT // BN)):
        m, l, acc = add_block(q, m, l, acc, k_ptr, v_ptr, k_desc, v_desc, place, j * BN, top,
                              first, last, factor, stride_kl, stride_vl, plane, head, D, DP, DOT,
                              BN, TMA, True, SPLIT == BN, PRECISION)  # fmt: skip
        if (j + 1) % (SPLIT // BN) == 0:
            source = mine + j // (SPLIT // BN) * space
            tl.store(source + r, m)
            tl.store(source + BM + r, l)
            tl.store(source + cell, acc, mask)
            m, l, acc = nothing(BM, DP)


@jit
def add_when_last(counter_ptr, group, per, mine, space, lo, hi, o_ptr, row0, q_len, stride_oh,
                  stride_ol, G, DOT: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                  BM: tl.constexpr, PR: tl.constexpr, AHEAD: tl.constexpr):  # fmt: skip
    """The last of a tile's parts, ``per`` splits each, adds them up; the counter is zero again."""
    tl.debug_barrier()
    done = tl.atomic_add(counter_ptr + group, 1, sem="acq_rel", scope="gpu")
    if done == (hi - 1) // per - lo // per:
        add_splits(mine, space, lo, hi, o_ptr, row0, 0, q_len, stride_oh, stride_ol, G, 0, DOT, D,
                   DP, BM, PR, DP, AHEAD)  # fmt: skip
        tl.store(counter_ptr + group, 0)


@jit_free("LQ", "LK", "NPARTS", "PER", "window", "G")
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, ws_ptr, counter_ptr, cu_q, cu_k, start_ptr, end_ptr, k_desc, v_desc,
    LQ, LK, NPARTS, PER, window, factor, stride_qb, stride_qh, stride_ql, stride_kb, stride_kh,
    stride_kl, stride_vb, stride_vh, stride_vl, stride_ob, stride_oh, stride_ol, G,
    D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SPLIT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, VARLEN: tl.constexpr,
    START: tl.constexpr, END: tl.constexpr, PARALLEL: tl.constexpr, LATER: tl.constexpr,
    PR: tl.constexpr, AHEAD: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows of a tile are (query, head of the group) pairs that share a key head.

    Grid (row tiles, key heads, sequences, times NPARTS if PARALLEL); a part is PER splits. The
    part that finishes last adds the splits up, unless that is left to ``merge_kernel`` (LATER).
    """
    head = tl.program_id(1)
    b = tl.program_id(2) // NPARTS if PARALLEL else tl.program_id(2)
    # The last tiles see the most keys: start them first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    q0, q_len, place, keys = bounds(b, LQ, LK, cu_q, cu_k, start_ptr, end_ptr, VARLEN, START, END)
    plane = b * 0 if VARLEN else b
    q_ptr += q0 * stride_ql + plane.to(tl.int64) * stride_qb
    o_ptr += q0 * stride_ol + plane.to(tl.int64) * stride_ob
    k_ptr += plane.to(tl.int64) * stride_kb
    v_ptr += plane.to(tl.int64) * stride_vb
    if tile * BM >= q_len * G:
        return
    q_ptr += head.to(tl.int64) * G * stride_qh
    o_ptr += head.to(tl.int64) * G * stride_oh
    k_ptr += head.to(tl.int64) * stride_kh + tl.cast(place, tl.int64) * stride_kl
    v_ptr += head.to(tl.int64) * stride_vh + tl.cast(place, tl.int64) * stride_vl
    r, d = tl.arange(0, BM), tl.arange(0, DP)
    query, member = (tile * BM + r) // G, (tile * BM + r) % G
    first, last = seen_keys(query, q_len, keys, window, CAUSAL, WINDOW)
    top, full, low = tile_range(query, q_len, first, last)
    at, mask = query[:, None].to(tl.int64), (query < q_len)[:, None] & (d[None, :] < D)
    q_at = at * stride_ql + member[:, None] * stride_qh + d[None, :]
    q = tl.load(q_ptr + q_at, mask=mask, other=0.0)
    out = o_ptr + at * stride_ol + member[:, None] * stride_oh + d[None, :]
    s_lo, s_hi = split_range(low, top, SPLIT)
    s_full = s_lo if WINDOW else full // SPLIT
    m, l, acc = nothing(BM, DP)
    if PARALLEL:
        part = tl.program_id(2) % NPARTS
        lo, hi = tl.maximum(part * PER, s_lo), tl.minimum(part * PER + PER, s_hi)
        if lo >= hi:
            return
        group = (b.to(tl.int64) * tl.num_programs(1) + head) * tl.num_programs(0) + tile
        space = BM * (DP + 2)
        mine = ws_ptr + group * (NPARTS * PER) * space
        store_splits(q, mine, space, lo, hi, k_ptr, v_ptr, k_desc, v_desc, place, top, first, last,
                     factor, stride_kl, stride_vl, plane, head, mask, D, DP, DOT, BM, BN, SPLIT,
                     TMA, PRECISION)  # fmt: skip
        if not LATER:
            add_when_last(counter_ptr, group, PER, mine, space, s_lo, s_hi, o_ptr, tile * BM, q_len,
                          stride_oh, stride_ol, G, DOT, D, DP, BM, PR, AHEAD)  # fmt: skip
    else:
        if not WINDOW:
            m, l, acc = walk(q, k_ptr, v_ptr, k_desc, v_desc, place, s_lo, s_full, m, l, acc, top,
                             first, last, factor, stride_kl, stride_vl, plane, head, D, DP, DOT,
                             BN, SPLIT, TMA, False, PRECISION)  # fmt: skip
        m, l, acc = walk(q, k_ptr, v_ptr, k_desc, v_desc, place, s_full, s_hi, m, l, acc, top,
                         first, last, factor, stride_kl, stride_vl, plane, head, D, DP, DOT, BN,
                         SPLIT, TMA, True, PRECISION)  # fmt: skip
        tl.store(out, quotient(acc, l, DOT).to(o_ptr.dtype.element_ty), mask)


@jit_free("LQ", "LK", "NSPLITS", "TILES", "window", "G")
def merge_kernel(
    o_ptr, ws_ptr, cu_q, cu_k, start_ptr, end_ptr, LQ, LK, NSPLITS, TILES, window, stride_ob,
    stride_oh, stride_ol, G, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
    BM: tl.constexpr, SPLIT: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    VARLEN: tl.constexpr, START: tl.constexpr, END: tl.constexpr, DC: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Add up what ``attention_kernel`` left in the workspace; grid (rows x columns / DC, heads, b).

    A program has one row, so that long contexts of few heads fill the processors here too.
    """
    head, b = tl.program_id(1), tl.program_id(2)
    number, column = tl.program_id(0) // (DP // DC), tl.program_id(0) % (DP // DC) * DC
    q0, q_len, _, keys = bounds(b, LQ, LK, cu_q, cu_k, start_ptr, end_ptr, VARLEN, START, END)
    if number >= q_len * G:
        return
    tile = number // BM
    # The bounds of the row's tile, as in the kernel before.
    query = (tile * BM + tl.arange(0, BM)) // G
    first, last = seen_keys(query, q_len, keys, window, CAUSAL, WINDOW)
    top, _, low = tile_range(query, q_len, first, last)
    s_lo, s_hi = split_range(low, top, SPLIT)
    plane = b * 0 if VARLEN else b
    o_ptr += q0 * stride_ol + plane.to(tl.int64) * stride_ob + head.to(tl.int64) * G * stride_oh
    space = BM * (DP + 2)
    group = (b.to(tl.int64) * tl.num_programs(1) + head) * TILES + tile
    mine = ws_ptr + group * NSPLITS * space
    add_splits(mine, space, s_lo, s_hi, o_ptr, tile * BM, number - tile * BM, q_len, stride_oh,
               stride_ol, G, column, DOT, D, DP, BM, 1, DC, AHEAD)  # fmt: skip
