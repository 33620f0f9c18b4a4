"""The two Triton kernels behind matmul: one order of additions, two ways to walk it.

The reduced axis is cut into S slices at multiples of ``KS``, both functions of (N, K) alone. A
slice is accumulated in FP32 in ascending k; the S partial sums are added in slice order, starting
from +0. FP32 and FP64 products sum each pair of BLOCK_K by itself before adding it (BLOCKED),
because a chain of K additions would lose more digits than torch does; their BLOCK_K is part of the
order. Which program does which slice, and with what tile, is free: it cannot change a bit.
"""

from __future__ import annotations

from .support import jit, jit_free, tl


@jit
def finish(acc, c_ptr, m, n, stride_cm, stride_cn, alpha, beta, mask, HAS_C, PLAIN):
    """``alpha * acc + beta * c`` in FP32, before the one rounding to the output type."""
    if not PLAIN:
        acc = acc * alpha
    if HAS_C:
        c = tl.load(c_ptr + m.to(tl.int64) * stride_cm + n.to(tl.int64) * stride_cn, mask, other=0)
        if PLAIN:
            acc = acc + c.to(acc.dtype)
        else:
            acc = tl.fma(c.to(acc.dtype), tl.full(acc.shape, beta, acc.dtype), acc)
    return acc


@jit
def grouped(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Tile number to (row, column): GROUP tile rows share each column while it is in the L2."""
    width = GROUP * tiles_n
    first = tile // width * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    return first + tile % width % rows, tile % width // rows


@jit
def one_product(x, w, k, left, x_mask, w_mask, acc, SWAP: tl.constexpr, EVEN_K: tl.constexpr,
                PRECISION: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """acc plus the product of one BLOCK_K, of which ``left`` k are real."""
    if not EVEN_K:
        if SWAP:
            x_mask = x_mask & (k[:, None] < left)
            w_mask = w_mask & (k[None, :] < left)
        else:
            x_mask = x_mask & (k[None, :] < left)
            w_mask = w_mask & (k[:, None] < left)
    xt = tl.load(x, mask=x_mask, other=0.0)
    wt = tl.load(w, mask=w_mask, other=0.0)
    if SWAP:
        acc = tl.dot(wt, xt, acc, input_precision=PRECISION, out_dtype=ACC)
    else:
        acc = tl.dot(xt, wt, acc, input_precision=PRECISION, out_dtype=ACC)
    return acc


@jit
def slice_product(a_ptr, b_ptr, m, n, k0, k1, M, N, stride_am, stride_ak, stride_bk, stride_bn,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SWAP: tl.constexpr,
                  EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
                  ACC: tl.constexpr, BLOCKED: tl.constexpr):  # fmt: skip
    """Partial product over k0 <= k < k1 for rows m and columns n; (BN, BM) if SWAP."""
    k = tl.arange(0, BK)
    if WIDE:
        m, n, k = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64)
    a_ptr += tl.cast(k0, tl.int64) * stride_ak
    b_ptr += tl.cast(k0, tl.int64) * stride_bk
    if SWAP:
        x = a_ptr + k[:, None] * stride_ak + m[None, :] * stride_am
        w = b_ptr + n[:, None] * stride_bn + k[None, :] * stride_bk
        x_mask, w_mask = m[None, :] < M, n[:, None] < N
        acc = tl.zeros((BN, BM), dtype=ACC)
    else:
        x = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        w = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        x_mask, w_mask = m[:, None] < M, n[None, :] < N
        acc = tl.zeros((BM, BN), dtype=ACC)
    if BLOCKED:
        for base in range(k0, k1, 2 * BK):
            # Two products of BK make a block; one alone would be fused with the addition.
            part = tl.zeros(acc.shape, dtype=ACC)
            part = one_product(x, w, k, k1 - base, x_mask, w_mask, part, SWAP, EVEN_K, PRECISION,
                               ACC)  # fmt: skip
            x += tl.cast(stride_ak, tl.int64) * BK
            w += tl.cast(stride_bk, tl.int64) * BK
            acc += one_product(x, w, k, k1 - base - BK, x_mask, w_mask, part, SWAP, EVEN_K,
                               PRECISION, ACC)  # fmt: skip
            x += tl.cast(stride_ak, tl.int64) * BK
            w += tl.cast(stride_bk, tl.int64) * BK
    else:
        for base in range(k0, k1, BK):
            acc = one_product(x, w, k, k1 - base, x_mask, w_mask, acc, SWAP, EVEN_K, PRECISION,
                              ACC)  # fmt: skip
            x += tl.cast(stride_ak, tl.int64) * BK
            w += tl.cast(stride_bk, tl.int64) * BK
    return acc


@jit_free("M")
def tile_kernel(a_ptr, b_ptr, o_ptr, c_ptr, ws_ptr, counter_ptr, M, N, K, KS, S, alpha, beta,
                stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
                stride_ob, stride_om, stride_on, stride_cb, stride_cm, stride_cn,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SWAP: tl.constexpr,
                MODE: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
                HAS_C: tl.constexpr, PLAIN: tl.constexpr, PRECISION: tl.constexpr,
                ACC: tl.constexpr, BLOCKED: tl.constexpr):  # fmt: skip
    """Any strides, any type; grid (tiles, slices, batch).

    MODE "whole": S is 1. "walk": the program goes through all slices itself. "parallel": one
    slice a program; the program that finishes last adds the S partial sums, in slice order.
    """
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    tile_m, tile_n = grouped(tl.program_id(0), tiles_m, tiles_n, 8)
    batch = tl.program_id(2).to(tl.int64)
    start_m, start_n = tile_m.to(tl.int64) * BM, tile_n.to(tl.int64) * BN
    a_ptr += batch * stride_ab + start_m * stride_am
    b_ptr += batch * stride_bb + start_n * stride_bn
    left_m, left_n = (M - start_m).to(tl.int32), (N - start_n).to(tl.int32)
    m, n = tl.arange(0, BM), tl.arange(0, BN)
    if MODE == "walk":
        total = tl.zeros((BN, BM) if SWAP else (BM, BN), dtype=ACC)
        for s in range(0, S):
            total += slice_product(
                a_ptr, b_ptr, m, n, s * KS, tl.minimum(s * KS + KS, K), left_m, left_n,
                stride_am, stride_ak, stride_bk, stride_bn,
                BM, BN, BK, SWAP, EVEN_K, WIDE, PRECISION, ACC, BLOCKED)  # fmt: skip
    else:
        s = tl.program_id(1)
        total = slice_product(
            a_ptr, b_ptr, m, n, s * KS, tl.minimum(s * KS + KS, K), left_m, left_n,
            stride_am, stride_ak, stride_bk, stride_bn,
            BM, BN, BK, SWAP, EVEN_K, WIDE, PRECISION, ACC, BLOCKED)  # fmt: skip
    if SWAP:
        m, n = m[None, :], n[:, None]
    else:
        m, n = m[:, None], n[None, :]
    mask = (m < left_m) & (n < left_n)
    row, col = start_m + m, start_n + n
    o_ptr += batch * stride_ob
    out = o_ptr + row * stride_om + col * stride_on
    c_ptr += batch * stride_cb
    if MODE == "parallel":
        plane = M.to(tl.int64) * N
        part = ws_ptr + row * N + col
        tl.store(part + tl.program_id(1) * plane, total, mask)
        tl.debug_barrier()
        done = tl.atomic_add(counter_ptr + tl.program_id(0), 1, sem="acq_rel", scope="gpu")
        if done == S - 1:
            total = tl.zeros(total.shape, dtype=ACC)
            for s in range(0, S):
                total += tl.load(part + s * plane, mask, other=0.0, cache_modifier=".cg")
            total = finish(total, c_ptr, row, col, stride_cm, stride_cn, alpha, beta, mask,
                           HAS_C, PLAIN)  # fmt: skip
            tl.store(out, total.to(o_ptr.dtype.element_ty), mask)
            tl.store(counter_ptr + tl.program_id(0), 0)
    else:
        total = finish(total, c_ptr, row, col, stride_cm, stride_cn, alpha, beta, mask,
                       HAS_C, PLAIN)  # fmt: skip
        tl.store(out, total.to(o_ptr.dtype.element_ty), mask)


@jit_free("M")
def stream_kernel(a_desc, b_desc, o_desc, o_ptr, c_ptr, ws_ptr, counter_ptr, M, N, K, KS, S,
                  alpha, beta, stride_om, stride_cm, stride_cn,
                  BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MODE: tl.constexpr,
                  A_K_MAJOR: tl.constexpr, B_N_MAJOR: tl.constexpr, OUT_TMA: tl.constexpr,
                  HAS_C: tl.constexpr, PLAIN: tl.constexpr):  # fmt: skip
    """Persistent programs fed by the tensor copy engine; a unit of work is (tile, slice).

    MODE "whole": S is 1. "spill": a program does the slices of a tile one after the other and
    keeps the running total in its own corner of the workspace, which stays in the L2, so that the
    accumulator can fill the register file. "parallel": slices go to different programs.
    """
    pid, programs = tl.program_id(0), tl.num_programs(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    tiles = tiles_m * tiles_n
    if MODE == "parallel":
        units = tl.cdiv(tiles * S - pid, programs)
    else:
        units = tl.cdiv(tiles - pid, programs) * S
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    for u in tl.range(0, units, flatten=True):
        if MODE == "parallel":
            tile, s = (pid + u * programs) // S, (pid + u * programs) % S
        elif MODE == "spill":
            tile, s = pid + u // S * programs, u % S
        else:
            tile, s = pid + u * programs, 0
        tile_m, tile_n = grouped(tile, tiles_m, tiles_n, 8)
        start_m, start_n = tile_m * BM, tile_n * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(s * KS, tl.minimum(s * KS + KS, K), BK):
            a = a_desc.load([k, start_m]).T if A_K_MAJOR else a_desc.load([start_m, k])
            b = b_desc.load([k, start_n]) if B_N_MAJOR else b_desc.load([start_n, k]).T
            acc = tl.dot(a, b, acc)
        row, col = start_m + i[:, None], start_n + j[None, :]
        mask = (row < M) & (col < N)
        last = True
        if MODE == "spill":
            corner = ws_ptr + pid.to(tl.int64) * (BM * BN) + i[:, None] * BN + j[None, :]
            if s == 0:
                acc += 0.0
            else:
                acc = tl.load(corner) + acc
            last = s == S - 1
            if not last:
                tl.store(corner, acc)
                tl.debug_barrier()
        if MODE == "parallel":
            plane = M.to(tl.int64) * N
            part = ws_ptr + row.to(tl.int64) * N + col
            tl.store(part + s * plane, acc, mask)
            tl.debug_barrier()
            last = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel", scope="gpu") == S - 1
            if last:
                acc = tl.zeros((BM, BN), dtype=tl.float32)
                for z in range(0, S):
                    acc += tl.load(part + z * plane, mask, other=0.0, cache_modifier=".cg")
                tl.store(counter_ptr + tile, 0)
        if last:
            acc = finish(acc, c_ptr, row, col, stride_cm, stride_cn, alpha, beta, mask,
                         HAS_C, PLAIN)  # fmt: skip
            if OUT_TMA:
                o_desc.store([start_m, start_n], acc.to(o_desc.dtype))
            else:
                out = o_ptr + row.to(tl.int64) * stride_om + col
                tl.store(out, acc.to(o_ptr.dtype.element_ty), mask)
