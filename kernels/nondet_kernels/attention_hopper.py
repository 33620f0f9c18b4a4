"""Prefill on Hopper with warps that specialise: the order of additions of ``attention_kernels``.

Three groups of warps share a tile of 128 rows. One keeps copies of keys and values in flight; the
other two take 64 rows each and wait for nothing but their own products and the copies. The scores
of the next block are asked for before the exponentials of this one are computed, so that tensor
cores and the rest of the processor work at the same time. A split is one block here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .attention_hopper_blocks import (
    block_barrier,
    consume,
    fence_async_shared,
    gl,
    gluon,
    jit_free,
    mbarrier,
    produce,
)
from .support import cdiv

ROWS = 128
"""(query, head) rows of a tile."""


@jit_free("LQ", "LK", "G")
def prefill_kernel(
    q_ptr, k_desc, v_desc, o_ptr, cu_q, cu_k, start_ptr, end_ptr, LQ, LK, factor, stride_qb,
    stride_qh, stride_ql, rows_kb, rows_kh, columns_kh, stride_ob, stride_oh, stride_ol, G,
    D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, VARLEN: gl.constexpr, START: gl.constexpr, END: gl.constexpr,
):  # fmt: skip
    """Grid (row tiles, key heads, sequences); keys and values are matrices to the copy engine."""
    HALF: gl.constexpr = BM // 2
    head, b = gl.program_id(1), gl.program_id(2)
    # The last tiles see the most keys: start them first.
    tile = gl.num_programs(0) - 1 - gl.program_id(0)
    start = 0
    if START:
        start = gl.load(start_ptr + b).to(gl.int32)
    place = start
    if VARLEN:
        q0, k0 = gl.load(cu_q + b).to(gl.int64), gl.load(cu_k + b).to(gl.int32)
        q_len = (gl.load(cu_q + b + 1) - q0).to(gl.int32)
        end = gl.load(cu_k + b + 1).to(gl.int32) - k0
        place += k0
        q_ptr += q0 * stride_ql
        o_ptr += q0 * stride_ol
    else:
        q_len, end = LQ, LK
        if END:
            end = gl.load(end_ptr + b).to(gl.int32)
        q_ptr += b.to(gl.int64) * stride_qb
        o_ptr += b.to(gl.int64) * stride_ob
    if tile * BM < q_len * G:
        q_ptr += head.to(gl.int64) * G * stride_qh
        o_ptr += head.to(gl.int64) * G * stride_oh
        keys = end - start
        top, full = keys, keys
        if CAUSAL:
            # First and last query of the tile bound what its rows see.
            low, high = tile * BM // G, gl.minimum((tile * BM + BM - 1) // G, q_len - 1)
            top = gl.minimum(gl.maximum(keys - q_len + high + 1, 0), keys)
            full = gl.minimum(gl.maximum(keys - q_len + low + 1, 0), keys)
        blocks, middle = gl.maximum((top + BN - 1) // BN, 1), full // BN
        kind: gl.constexpr = k_desc.dtype
        smem: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BN, D], kind)
        q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HALF, D], kind)
        k_smem = gl.allocate_shared_memory(kind, [STAGES, BN, D], smem)
        v_smem = gl.allocate_shared_memory(kind, [STAGES, BN, D], smem)
        q_smem = gl.allocate_shared_memory(kind, [2, HALF, D], q_layout)
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(STAGES):
            mbarrier.init(k_full.index(i), count=1)
            mbarrier.init(v_full.index(i), count=1)
            mbarrier.init(k_empty.index(i), count=2)
            mbarrier.init(v_empty.index(i), count=2)
        wide: gl.constexpr = gl.BlockedLayout(
            [1, 8], [2, 16] if D == 128 else [4, 8], [4, 1], [1, 0]
        )
        for half in gl.static_range(2):
            r = tile * BM + half * HALF + gl.arange(0, HALF, layout=gl.SliceLayout(1, wide))
            d = gl.arange(0, D, layout=gl.SliceLayout(0, wide))
            at = (r // G).to(gl.int64) * stride_ql + (r % G) * stride_qh
            mask = ((r // G) < q_len)[:, None] & (d < D)[None, :]
            q_smem.index(half).store(gl.load(q_ptr + (at[:, None] + d[None, :]), mask, other=0.0))
        fence_async_shared()
        block_barrier()
        row, column = b * rows_kb + head * rows_kh + place, head * columns_kh
        first, second = q_smem.index(0), q_smem.index(1)
        gl.warp_specialize([
            (consume, (first, o_ptr, k_smem, v_smem, k_full, v_full, k_empty, v_empty, middle,
                       blocks, tile * BM, q_len, keys, top, factor, stride_oh, stride_ol, G, BN, D,
                       STAGES, CAUSAL)),
            (consume, (second, o_ptr, k_smem, v_smem, k_full, v_full, k_empty, v_empty, middle,
                       blocks, tile * BM + HALF, q_len, keys, top, factor, stride_oh, stride_ol, G,
                       BN, D, STAGES, CAUSAL)),
            (produce, (k_desc, v_desc, k_smem, v_smem, k_full, v_full, k_empty, v_empty, row,
                       column, blocks, BN, D, STAGES)),
        ], [4, 1], [240, 24])  # fmt: skip


@functools.cache
def usable(device: torch.device) -> bool:
    """Whether these instructions exist: compute capability 9 alone has them."""
    return (
        gluon is not None
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] == 9
    )


Flat = tuple[list[int], list[int], int, int, int]


def flat(x: torch.Tensor) -> Flat | None:
    """(shape, strides, rows a sequence, rows and columns a head) of x (B, H, L, D) as a matrix.

    None where the copy engine cannot read x as one.
    """
    (batch, heads, length, width), (sb, sh, sl, sd) = x.shape, x.stride()
    size = x.element_size()
    if sd != 1 or x.data_ptr() % 16 or sl * size % 16 or sl < width or (batch > 1 and sb % sl):
        return None
    rows_b = sb // sl if batch > 1 else 0
    if heads == 1:
        rows_h, columns = 0, 0
    elif sh % sl == 0:
        rows_h, columns = sh // sl, 0
    elif (heads - 1) * sh + width <= sl and sh * size % 16 == 0:
        rows_h, columns = 0, sh
    else:
        return None
    rows = (batch - 1) * rows_b + (heads - 1) * rows_h + length
    return [rows, (heads - 1) * columns + width], [sl, 1], rows_b, rows_h, columns


def prefill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
            lengths: tuple[torch.Tensor, ...], kinds: dict[str, Any], max_q: int, max_k: int,
            count: int, factor: float, block: int, stages: int) -> bool:  # fmt: skip
    """Start the kernel for (B, H, L, D) operands; False where these operands need another."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    keys, values = flat(k), flat(v)
    if not usable(q.device) or kinds["SPLIT"] != block or not keys or not values:
        return False
    if keys[2:] != values[2:]:
        return False
    group, width = q.shape[1] // k.shape[1], q.shape[3]
    kind = gl.bfloat16 if q.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([block, width], kind)
    k_desc = TensorDescriptor(k, keys[0], keys[1], [block, width], layout)
    v_desc = TensorDescriptor(v, values[0], values[1], [block, width], layout)
    chosen = {name: kinds[name] for name in ("CAUSAL", "VARLEN", "START", "END")}
    prefill_kernel[(cdiv(max_q * group, ROWS), k.shape[1], count)](
        q, k_desc, v_desc, o, *lengths, max_q, max_k, factor, *q.stride()[:3], *keys[2:],
        *o.stride()[:3], group, D=width, BM=ROWS, BN=block, STAGES=stages, **chosen,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return True
