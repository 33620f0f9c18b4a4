"""The arithmetic of attention: blocks of keys into splits, splits into one result.

A split is a whole number of blocks, two at most in practice, and the body of the loop: the copies
of the next split are then in flight while this one is computed, also across a split's end. A
split's sums never see those of another before they are merged, so any program may compute any
split.
"""

from __future__ import annotations

from .arithmetic import divide, far_sum, power_of_two
from .support import jit, tl


@jit
def load_block(ptr, desc, place, base, keys, stride, b, head, D: tl.constexpr, DP: tl.constexpr,
               BN: tl.constexpr, TMA: tl.constexpr, MASKED: tl.constexpr,
               CLEAN: tl.constexpr):  # fmt: skip
    """(BN, DP) keys or values from ``base`` on; places from ``keys`` on are zero if CLEAN."""
    n, d = tl.arange(0, BN)[:, None], tl.arange(0, DP)[None, :]
    if TMA:
        block = tl.reshape(desc.load([b, head, place + base, 0]), (BN, DP))
        if MASKED and CLEAN:
            block = tl.where(n < keys - base, block, 0.0)
        return block
    at = ptr + tl.cast(base, tl.int64) * stride + (n * stride + d)
    if MASKED:
        return tl.load(at, mask=(n < keys - base) & (d < D), other=0.0)
    if D == DP:
        return tl.load(at)
    return tl.load(at, mask=d < D, other=0.0)


@jit
def block_sums(s, m, v, l, acc, base, first, last, factor, FIRST: tl.constexpr,
               MASKED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Add one block of scores s (rows, BN) to a split's maximum, sum and accumulator."""
    if MASKED:
        key = base + tl.arange(0, s.shape[1])[None, :]
        seen = (key >= first[:, None]) & (key < last[:, None])
        s = tl.where(seen, s, float("-inf"))
    new = tl.ceil(tl.max(s, axis=1) * factor)
    if not FIRST:
        new = tl.maximum(m, new)
    safe = tl.where(new == float("-inf"), 0.0, new)
    scale = tl.full(s.shape, factor, tl.float32)
    p = tl.exp2(tl.fma(s, scale, tl.broadcast_to(-safe[:, None], s.shape)))
    # The weights as the product will see them: their rounding then cancels in the quotient.
    p = p.to(DOT)
    if FIRST:
        l = far_sum(p.to(tl.float32))
        acc = tl.dot(p, v, input_precision=PRECISION)
    else:
        shrink = power_of_two(m - safe)
        l = l * shrink + far_sum(p.to(tl.float32))
        acc = acc * shrink[:, None]
        acc = tl.dot(p, v, acc, input_precision=PRECISION)
    return new, l, acc


@jit
def add_block(q, m, l, acc, k_ptr, v_ptr, k_desc, v_desc, place, base, keys, first, last, factor,
              stride_kl, stride_vl, b, head, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
              BN: tl.constexpr, TMA: tl.constexpr, MASKED: tl.constexpr, FIRST: tl.constexpr,
              PRECISION: tl.constexpr):  # fmt: skip
    """Add the block of keys at ``base`` to a split's (maximum, sum, accumulator)."""
    k = load_block(k_ptr, k_desc, place, base, keys, stride_kl, b, head, D, DP, BN, TMA, MASKED,
                   False)  # fmt: skip
    v = load_block(v_ptr, v_desc, place, base, keys, stride_vl, b, head, D, DP, BN, TMA, MASKED,
                   True)  # fmt: skip
    s = tl.dot(q, k.T, input_precision=PRECISION)
    return block_sums(s, m, v, l, acc, base, first, last, factor, FIRST, MASKED, DOT, PRECISION)


@jit
def nothing(BM: tl.constexpr, DP: tl.constexpr):
    """(maximum, sum, accumulator) before any key."""
    m = tl.full((BM,), float("-inf"), tl.float32)
    l = tl.zeros((BM,), dtype=tl.float32)
    return m, l, tl.zeros((BM, DP), dtype=tl.float32)


@jit
def merge(m, l, acc, m2, l2, acc2):
    """Add the next split's sums; every factor is a power of two, so only the additions round."""
    new = tl.maximum(m, m2)
    safe = tl.where(new == float("-inf"), 0.0, new)
    a, b = power_of_two(m - safe), power_of_two(m2 - safe)
    total = tl.fma(acc2, tl.broadcast_to(b[:, None], acc.shape), acc * a[:, None])
    return new, tl.fma(l2, b, l * a), total


@jit
def walk(q, k_ptr, v_ptr, k_desc, v_desc, place, lo, hi, m, l, acc, keys, first, last, factor,
         stride_kl, stride_vl, b, head, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
         BN: tl.constexpr, SPLIT: tl.constexpr, TMA: tl.constexpr, MASKED: tl.constexpr,
         PRECISION: tl.constexpr):  # fmt: skip
    """Merge the splits lo <= s < hi into (m, l, acc), in order; one loop over all their blocks."""
    PER: tl.constexpr = SPLIT // BN
    m2, l2, acc2 = nothing(q.shape[0], DP)
    for j in range(lo * PER, hi * PER):
        m2, l2, acc2 = add_block(q, m2, l2, acc2, k_ptr, v_ptr, k_desc, v_desc, place, j * BN, keys,
                                 first, last, factor, stride_kl, stride_vl, b, head, D, DP, DOT, BN,
                                 TMA, MASKED, PER == 1, PRECISION)  # fmt: skip
        if PER == 1:
            m, l, acc = merge(m, l, acc, m2, l2, acc2)
        elif j % PER == PER - 1:
            m, l, acc = merge(m, l, acc, m2, l2, acc2)
            m2, l2, acc2 = nothing(q.shape[0], DP)
    return m, l, acc


@jit
def quotient(acc, l, DOT: tl.constexpr):
    """Weighted mean; a row that sees no key is zero, not NaN, and zero has one sign."""
    whole = tl.where(l == 0.0, 1.0, l)
    if tl.float32 == DOT:
        y = divide(acc, tl.broadcast_to(whole[:, None], acc.shape))
    else:
        # Two roundings far below the one to 16 bits, for a tenth of the time.
        y = acc * divide(tl.full(whole.shape, 1.0, tl.float32), whole)[:, None]
    return y + 0.0
