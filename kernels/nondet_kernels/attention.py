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
from collections.abc import Iterator
from typing import Any

import torch

from . import attention_hopper
from .attention_kernels import attention_kernel, merge_kernel
from .matmul import bmm
from .matmul_launch import scratch
from .softmax import softmax
from .support import (
    OutOfResources,
    Ready,
    cdiv,
    hopper,
    layout,
    next_power_of_2,
    on_device,
    processors,
    require,
    start,
    tl,
)

BLOCK = 128
"""Keys of a block; see ``block_of`` for the types and widths that take fewer."""
SPLIT = 128
"""Keys of a split: few enough that one sequence fills the GPU at decode."""
WALK = 0.75
"""Programs a processor from which decode walks its splits instead of sharing them out."""
MERGE = 16
"""Splits from which a kernel of its own adds them up, over more processors."""
AHEAD = 8
"""Splits that the last part of a sequence reads at a time when it adds them up."""
PARTS = 4
"""Programs a processor among which splits are shared out."""


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
        q: (B, H, Lq, D), any strides; D from 1 to 256; for FP64 see ``_float64``. With
            ``cu_seqlens_q``: (T, H, D).
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
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention: one type expected, not {q.dtype}, {k.dtype}, {v.dtype}")
    if varlen:
        assert cu_seqlens_q is not None
        assert cu_seqlens_k is not None
        max_q = int(cu_seqlens_q.diff().max()) if max_q is None else max_q
        max_k = int(cu_seqlens_k.diff().max()) if max_k is None else max_k
        q4, k4, v4 = (t.transpose(0, 1)[None] for t in (q, k, v))
        count = cu_seqlens_q.numel() - 1
    else:
        q4, k4, v4, count = q, k, v, q.shape[0]
        max_q, max_k = q.shape[2], k.shape[2]
    if q4.shape[1] % k4.shape[1] or q4.shape[3] != k4.shape[3] or k4.shape != v4.shape:
        raise ValueError(f"attention: shapes {q.shape}, {k.shape}, {v.shape} do not fit")
    if q.numel() == 0 or max_k == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=device)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if scale < 0:
        q4, scale = -q4, -scale
    q4, k4, v4 = (t if t.stride(3) == 1 else t.contiguous() for t in (q4, k4, v4))
    key = None
    if not varlen and parallel is None:
        key = (layout(q4), layout(k4), layout(v4), layout(key_start), layout(key_end), causal,
               scale, window, allow_tf32)  # fmt: skip
        ready = _ready.get(key)
        if ready is not None:
            return ready(q4, k4, v4, key_start, key_end)
    out = torch.empty(q.shape, dtype=q.dtype, device=device)
    o4 = out.transpose(0, 1)[None] if varlen else out
    if q.dtype == torch.float64:
        parts = _sequences(q4, k4, v4, o4, key_start, key_end, cu_seqlens_q, cu_seqlens_k)
        for part in parts:
            _float64(*part, causal=causal, scale=scale, window=window)
        return out
    with on_device(device):
        _launch(q4, k4, v4, o4, (max_q, max_k, count), causal, scale, window, key_start, key_end,
                cu_seqlens_q, cu_seqlens_k, allow_tf32, parallel, key)  # fmt: skip
    return out


_ready = Ready()


Sequence = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _sequences(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
               start: torch.Tensor | None, end: torch.Tensor | None, cu_q: torch.Tensor | None,
               cu_k: torch.Tensor | None) -> Iterator[Sequence]:  # fmt: skip
    """(q, k, v, out) of each sequence, each (heads, length, D), without padding."""
    if cu_q is not None and cu_k is not None:
        bounds = zip(cu_q[:-1].tolist(), cu_q[1:].tolist(), cu_k[:-1].tolist(), cu_k[1:].tolist(),
                     strict=True)  # fmt: skip
        for q0, q1, k0, k1 in bounds:
            yield q[0, :, q0:q1], k[0, :, k0:k1], v[0, :, k0:k1], o[0, :, q0:q1]
        return
    for b in range(q.shape[0]):
        first = 0 if start is None else int(start[b])
        last = k.shape[2] if end is None else int(end[b])
        yield q[b], k[b, :, first:last], v[b, :, first:last], o[b]


def _float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, *, causal: bool,
             scale: float, window: int | None) -> None:  # fmt: skip
    """One sequence by products and softmax in FP64.

    Batch and padding do not matter here; the number of keys does, in the order of the softmax's
    sum, so that prefill and decode may differ in the last bit.
    """
    if k.shape[1] == 0:
        o.zero_()
        return
    k, v = (t.repeat_interleave(q.shape[0] // k.shape[0], 0) for t in (k, v))
    i = k.shape[1] - q.shape[1] + torch.arange(q.shape[1], device=q.device)[:, None]
    j = torch.arange(k.shape[1], device=q.device)
    seen = (j <= i) if causal else torch.ones_like(i, dtype=torch.bool) | (j >= 0)
    if window is not None:
        seen = seen & (j > i - window)
    scores = bmm(q, k.transpose(1, 2)).mul_(scale).masked_fill_(~seen, -math.inf)
    weights = softmax(scores, -1).masked_fill_(~seen, 0.0)
    o.copy_(bmm(weights, v))


def _launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
            sizes: tuple[int, int, int], causal: bool, scale: float, window: int | None,
            first: torch.Tensor | None, end: torch.Tensor | None, cu_q: torch.Tensor | None,
            cu_k: torch.Tensor | None, tf32: bool, parallel: bool | None,
            key: Any) -> None:  # fmt: skip
    """Start the kernels; with a ``key``, keep the launch for operands laid out alike."""
    (max_q, max_k, count), heads = sizes, k.shape[1]
    group, width = q.shape[1] // heads, q.shape[3]
    padded = max(16, next_power_of_2(width))
    block = block_of(padded, q.element_size())
    splits = cdiv(max_k, SPLIT)
    bm, warps, stages, engine = shape_of(max_q * group, padded, q.element_size())
    engine = engine if hopper(q.device) else "loads"
    factor = scale * 1.4426950408889634
    lengths = tuple(o if t is None else t for t in (cu_q, cu_k, first, end))
    kinds: dict[str, Any] = dict(SPLIT=SPLIT, CAUSAL=causal, WINDOW=window is not None)
    kinds |= dict(VARLEN=cu_q is not None, START=first is not None, END=end is not None)
    special = engine == "warps" and width in (64, 128) and window is None and not parallel
    if special and attention_hopper.prefill(
        q, k, v, o, lengths, kinds, max_q, max_k, count, factor, block, stages
    ):
        return
    if engine == "warps":
        bm, warps, stages, engine = copied_shape(padded)
    tiles = cdiv(max_q * group, bm)
    programs = tiles * heads * count
    if parallel is None:
        parallel = splits > 1 and bm == 16 and programs < WALK * processors(q.device)
    parts, per = 1, splits
    if parallel:
        # Enough parts for every processor, several splits each where there are more than that.
        per = math.ceil(splits * programs / (PARTS * processors(q.device)))
        parts = cdiv(splits, per)
        warps, stages = parallel_shape(per, padded, q.element_size())
    elif bm == 16 and splits <= 4:
        stages = min(stages, 2)
    later = parallel and splits > MERGE
    tma = engine != "loads" and _copyable(k) and _copyable(v)
    tile = dict(D=width, DP=padded, DOT=_DOT[q.dtype], BM=bm)
    numbers = (max_q, max_k, parts, per, window or 0, factor, *q.stride()[:3], *k.stride()[:3],
               *v.stride()[:3], *o.stride()[:3], group)  # fmt: skip
    constants = dict(**tile, BN=block, **kinds, PARALLEL=parallel, LATER=later,
                     PR=min(bm, next_power_of_2(max_q * group)), AHEAD=AHEAD, TMA=tma,
                     PRECISION="tf32" if tf32 else "ieee")  # fmt: skip
    options = dict(num_warps=warps, num_stages=stages, enable_fp_fusion=False)
    main = _Kernel(attention_kernel, (tiles, heads, count * parts), numbers, constants, options)
    if tma:
        main(q, k, v, o, o, o, *lengths, *(_descriptor(t, block, padded) for t in (k, v)))
        return
    columns = min(padded, 32)
    adding = _Kernel(
        merge_kernel, (max_q * group * (padded // columns), heads, count),
        (max_q, max_k, parts * per, tiles, window or 0, *o.stride()[:3], group),
        dict(**tile, **kinds, DC=columns, AHEAD=32), dict(num_warps=1, enable_fp_fusion=False),
    )  # fmt: skip
    space = programs * parts * per * bm * (padded + 2)

    def again(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              *lengths: torch.Tensor | None) -> None:  # fmt: skip
        given = [o if t is None else t for t in lengths]
        work, counters = scratch(q, programs, space) if parallel else (o, o)
        main(q, k, v, o, work, counters, *given, k, v)
        if later:
            adding(o, work, *given)

    again(o, q, k, v, cu_q, cu_k, first, end)
    if key is not None and main.run is not None:
        _ready.put(key, q, tuple(o.shape), lambda o, q, k, v, first, end: again(
            o, q, k, v, None, None, first, end))  # fmt: skip


class _Kernel:
    """A kernel with all its arguments but the tensors; the second call only starts it."""

    def __init__(self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...],
                 constants: dict[str, Any], options: dict[str, Any]) -> None:  # fmt: skip
        self.kernel, self.grid, self.numbers = kernel, grid, numbers
        self.constants, self.options = constants, options
        self.run: Any = None
        self.rest = (*numbers, *constants.values())

    def __call__(self, *tensors: torch.Tensor) -> None:
        if self.run is not None:
            self.run(*tensors, *self.rest)
            return
        args = (*tensors, *self.numbers)
        compiled = None
        while compiled is None:
            try:
                if self.constants.get("TMA"):
                    self.kernel[self.grid](*args, **self.constants, **self.options)
                    return
                compiled = start(self.kernel, self.grid, args, self.constants, self.options)
                if compiled is None:  # the interpreter
                    return
            except OutOfResources:
                # One stage less: a matter of memory, not of bits.
                if self.options.get("num_stages", 1) == 1:
                    raise
                self.options["num_stages"] -= 1
        self.run = compiled[self.grid]


def _copyable(x: torch.Tensor) -> bool:
    """Whether the tensor copy engine can read x (B, H, L, D)."""
    size = x.element_size()
    steps = [x.stride(i) * size for i in range(3)]
    return x.data_ptr() % 16 == 0 and all(0 < s < 2**40 and s % 16 == 0 for s in steps)


def _descriptor(x: torch.Tensor, block: int, padded: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, block, padded])


_DOT: dict[torch.dtype, Any] = {} if tl is None else {
    torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32,
}  # fmt: skip


def block_of(width: int, size: int) -> int:
    """Keys of a block: part of the order of additions, so a function of width and type alone."""
    return BLOCK // (1 if size == 2 else 2) // (1 if width <= 128 else 2)


def shape_of(rows: int, width: int, size: int) -> tuple[int, int, int, str]:
    """Rows of a tile, warps, stages, and what brings the keys: "loads", "copies" (TMA), "warps".

    For a sequence's (query, head) rows; never changes a bit.
    """
    if size == 4:
        return (16, 4, 1, "loads") if rows <= 16 else (32, 8, 1, "loads")
    if rows <= 64:
        return 16, 4, 3 if width <= 128 else 2, "loads"
    if width > 128:
        return 64, 8, 2, "loads"
    return copied_shape(width)


def copied_shape(width: int) -> tuple[int, int, int, str]:
    """The same with keys brought by the copy engine to warps that all do the same."""
    return (64, 4, 2, "copies") if width <= 64 else (128, 8, 3, "copies")


def parallel_shape(per: int, width: int, size: int) -> tuple[int, int]:
    """Warps and stages of a program that computes ``per`` splits; never changes a bit."""
    return (4, 1) if size == 4 else (4, 2)
