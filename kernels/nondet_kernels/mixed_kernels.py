"""The Triton kernel behind ``mixed``: FP32 activations times 16-bit weights on the tensor cores.

An FP32 number has 24 significant bits and bf16 has 8, so x = high + middle + low with three bf16
numbers, exactly; a product of two bf16 numbers is exact in FP32. So three bf16 products with FP32
sums give what an FP32 product gives, without TF32 and without an FP32 copy of the weights. An fp16
weight has 11 bits and is cut in two bf16 parts likewise, which makes six products.

The parts are cut off, not rounded: a rounded high part of the largest numbers would be infinite.
Below 2**-110 the low part leaves the range of bf16 and up to 2**-133 of x is lost. An infinite x
has only a high part, and a NaN keeps its NaN; so rows with such numbers come out as in FP32, for
finite weights.

Order of additions: the sum over k is cut into S slices, functions of (N, K) alone; in a slice,
blocks of BLOCK_K are summed by themselves, small parts first, and added in ascending k. The tile
and the side of the weights follow the number of rows and cannot change a bit.
"""

from __future__ import annotations

from .matmul_kernels import finish, grouped
from .support import jit, jit_free, tl


@jit
def upper(x):
    """The leading 8 significant bits of FP32 numbers, cut off toward zero."""
    # -65536 is 0xFFFF0000: sign, exponent and seven stored bits of the fraction.
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@jit
def parts(x, KIND: tl.constexpr):
    """FP32 x as three numbers of type KIND (bf16) whose sum is x."""
    high = upper(x)
    rest = tl.where(tl.abs(x) == float("inf"), 0.0, x - high)
    middle = upper(rest)
    return high.to(KIND), middle.to(KIND), (rest - middle).to(KIND)


@jit
def dot(x, w, acc, SWAP: tl.constexpr):
    """acc + x w, or w x where the weights stand on the left."""
    if SWAP:
        acc = tl.dot(w, x, acc, input_precision="ieee")
    else:
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


@jit
def mixed_block(xs, ws, k, left, x_mask, w_mask, SWAP: tl.constexpr, EVEN_K: tl.constexpr,
                HALF: tl.constexpr, KIND: tl.constexpr, SHAPE: tl.constexpr):  # fmt: skip
    """The product of one BLOCK_K, of which ``left`` k are real, summed by itself."""
    if not EVEN_K:
        if SWAP:
            x_mask, w_mask = x_mask & (k[:, None] < left), w_mask & (k[None, :] < left)
        else:
            x_mask, w_mask = x_mask & (k[None, :] < left), w_mask & (k[:, None] < left)
    x = tl.load(xs, mask=x_mask, other=0.0)
    w = tl.load(ws, mask=w_mask, other=0.0)
    high, middle, low = parts(x, KIND)
    part = tl.zeros(SHAPE, dtype=tl.float32)
    if HALF:
        whole = w.to(tl.float32)
        top = upper(whole)
        tail = (whole - top).to(KIND)
        w = top.to(KIND)
        part = dot(low, tail, part, SWAP)
        part = dot(middle, tail, part, SWAP)
        part = dot(low, w, part, SWAP)
        # Infinity times a tail of zero would be a NaN; the weight's own part says enough.
        bounded = tl.where(tl.abs(x) == float("inf"), 0.0, high.to(tl.float32)).to(KIND)
        part = dot(bounded, tail, part, SWAP)
    else:
        w = w.to(KIND)
        part = dot(low, w, part, SWAP)
    part = dot(middle, w, part, SWAP)
    return dot(high, w, part, SWAP)


@jit
def mixed_slice(x_ptr, w_ptr, m, n, k0, k1, M, N, stride_xm, stride_xk, stride_wn, stride_wk,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UNROLL: tl.constexpr,
                SWAP: tl.constexpr, EVEN_K: tl.constexpr, HALF: tl.constexpr,
                KIND: tl.constexpr):  # fmt: skip
    """Partial product over k0 <= k < k1 for rows m and columns n; (BN, BM) if SWAP.

    A step takes UNROLL blocks, so that one block's loads and products hide another's.
    """
    SHAPE: tl.constexpr = (BN, BM) if SWAP else (BM, BN)
    k = tl.arange(0, BK)
    x_ptr += tl.cast(k0, tl.int64) * stride_xk
    w_ptr += tl.cast(k0, tl.int64) * stride_wk
    if SWAP:
        xs = x_ptr + k[:, None] * stride_xk + m[None, :] * stride_xm
        ws = w_ptr + n[:, None] * stride_wn + k[None, :] * stride_wk
        x_mask, w_mask = m[None, :] < M, n[:, None] < N
    else:
        xs = x_ptr + m[:, None] * stride_xm + k[None, :] * stride_xk
        ws = w_ptr + k[:, None] * stride_wk + n[None, :] * stride_wn
        x_mask, w_mask = m[:, None] < M, n[None, :] < N
    acc = tl.zeros(SHAPE, dtype=tl.float32)
    for base in range(k0, k1, UNROLL * BK):
        for u in tl.static_range(UNROLL):
            acc += mixed_block(xs + u * BK * stride_xk, ws + u * BK * stride_wk, k,
                               k1 - base - u * BK, x_mask, w_mask, SWAP, EVEN_K, HALF, KIND,
                               SHAPE)  # fmt: skip
        xs += UNROLL * BK * stride_xk
        ws += UNROLL * BK * stride_wk
    return acc


@jit_free("M")
def mixed_kernel(x_ptr, w_ptr, o_ptr, c_ptr, ws_ptr, counter_ptr, M, N, K, KS,
                 stride_xm, stride_xk, stride_wn, stride_wk, stride_c, S: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, UNROLL: tl.constexpr,
                 SWAP: tl.constexpr, MODE: tl.constexpr, EVEN_K: tl.constexpr,
                 HALF: tl.constexpr, HAS_C: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """out (M, N) FP32, contiguous; grid (tiles, slices if "parallel" else 1).

    MODE "walk": a program adds all slices itself. "parallel": one slice a program; the program
    that finishes last adds the S partial sums. Both in slice order, from +0.
    """
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    tile_m, tile_n = grouped(tl.program_id(0), tiles_m, tiles_n, 8)
    start_m, start_n = tile_m.to(tl.int64) * BM, tile_n.to(tl.int64) * BN
    x_ptr += start_m * stride_xm
    w_ptr += start_n * stride_wn
    left_m, left_n = (M - start_m).to(tl.int32), (N - start_n).to(tl.int32)
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    if MODE == "walk":
        total = tl.zeros((BN, BM) if SWAP else (BM, BN), dtype=tl.float32)
        for s in range(0, S):
            total += mixed_slice(
                x_ptr, w_ptr, m, n, s * KS, tl.minimum(s * KS + KS, K), left_m, left_n,
                stride_xm, stride_xk, stride_wn, stride_wk, BM, BN, BK, UNROLL, SWAP, EVEN_K,
                HALF, KIND)  # fmt: skip
    else:
        s = tl.program_id(1)
        total = mixed_slice(
            x_ptr, w_ptr, m, n, s * KS, tl.minimum(s * KS + KS, K), left_m, left_n,
            stride_xm, stride_xk, stride_wn, stride_wk, BM, BN, BK, UNROLL, SWAP, EVEN_K,
            HALF, KIND)  # fmt: skip
    if SWAP:
        m, n = m[None, :], n[:, None]
    else:
        m, n = m[:, None], n[None, :]
    mask = (m < left_m) & (n < left_n)
    row, col = start_m + m, start_n + n
    place = row * N + col
    if MODE == "parallel":
        plane = M.to(tl.int64) * N
        tl.store(ws_ptr + place + s * plane, total, mask)
        tl.debug_barrier()
        done = tl.atomic_add(counter_ptr + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        if done == S - 1:
            total = tl.zeros(total.shape, dtype=tl.float32)
            for z in tl.static_range(S):  # unrolled, so that the loads do not wait for sums
                total += tl.load(ws_ptr + place + z * plane, mask, other=0.0, cache_modifier=".cg")
            total = finish(total, c_ptr, row, col, 0, stride_c, 1.0, 1.0, mask, HAS_C, True)
            tl.store(o_ptr + place, total, mask)
            tl.store(counter_ptr + tl.program_id(0), 0)
    else:
        total = finish(total, c_ptr, row, col, 0, stride_c, 1.0, 1.0, mask, HAS_C, True)
        tl.store(o_ptr + place, total, mask)
