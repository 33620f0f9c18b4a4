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

import torch

from .attention_launch import Call, Lengths, launch
from .matmul import bmm
from .softmax import softmax
from .support import Ready, layout, on_device, require


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
    if window is not None and (not causal or window < 1):
        raise ValueError(f"attention: window={window} needs causal and at least 1")
    lengths = (cu_seqlens_q, cu_seqlens_k, key_start, key_end)
    sizes = _sizes(q, k, v, lengths, max_q, max_k)
    if q.numel() == 0 or sizes[1] == 0:
        return torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if scale < 0:
        q, scale = -q, -scale
    return _run(q, k, v, lengths, Call(*sizes, causal, scale, window, allow_tf32, parallel))


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Lengths, max_q: int | None,
           max_k: int | None) -> tuple[int, int, int]:  # fmt: skip
    """(longest sequence of queries, of keys, number of sequences) of operands that fit.

    Raises:
        ValueError, TypeError: operands that do not.
    """
    cu_q, cu_k = lengths[:2]
    if (cu_q is None) != (cu_k is None):
        raise ValueError("attention: cu_seqlens_q and cu_seqlens_k go together")
    require(q, k, v)
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention: one type expected, not {q.dtype}, {k.dtype}, {v.dtype}")
    # Heads are the third dimension from the end with padding, the second end to end.
    heads = 1 if cu_q is None else -2
    if q.shape[heads] % k.shape[heads] or q.shape[-1] != k.shape[-1] or k.shape != v.shape:
        raise ValueError(f"attention: shapes {q.shape}, {k.shape}, {v.shape} do not fit")
    if cu_q is None or cu_k is None:
        return q.shape[2], k.shape[2], q.shape[0]
    max_q = int(cu_q.diff().max()) if max_q is None else max_q
    max_k = int(cu_k.diff().max()) if max_k is None else max_k
    return max_q, max_k, cu_q.numel() - 1


_ready = Ready()


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Lengths,
         call: Call) -> torch.Tensor:  # fmt: skip
    """The launch kept for operands laid out alike, or a new one."""
    cu_q, _, first, end = lengths
    varlen = cu_q is not None
    q4, k4, v4 = (t.transpose(0, 1)[None] if varlen else t for t in (q, k, v))
    q4, k4, v4 = (t if t.stride(3) == 1 else t.contiguous() for t in (q4, k4, v4))
    key = None
    if not varlen and call.parallel is None:
        key = (layout(q4), layout(k4), layout(v4), layout(first), layout(end), call)
        ready = _ready.get(key)
        if ready is not None:
            return ready(q4, k4, v4, first, end)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    o4 = out.transpose(0, 1)[None] if varlen else out
    if q.dtype == torch.float64:
        for part in _sequences(q4, k4, v4, o4, lengths):
            _float64(*part, causal=call.causal, scale=call.scale, window=call.window)
        return out
    with on_device(q.device):
        again = launch(q4, k4, v4, o4, lengths, call)
    if key is not None and again is not None:
        _ready.put(key, q4, tuple(out.shape), lambda o, q, k, v, first, end: again(
            o, q, k, v, None, None, first, end))  # fmt: skip
    return out


Sequence = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _sequences(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
               lengths: Lengths) -> Iterator[Sequence]:  # fmt: skip
    """(q, k, v, out) of each sequence, each (heads, length, D), without padding."""
    cu_q, cu_k, start, end = lengths
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
