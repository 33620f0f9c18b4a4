"""Attention on the CPU whose rows depend only on their own query and the keys they see.

Each call of torch's flash kernel gets query rows of one fixed number and keys rounded up to whole
blocks (``visible``), copied to buffers of their own with zeros behind them. Heads that share keys
are stacked as rows, so that grouped-query decode fills a block. Inside the kernel each (sequence,
head, block) is a task of its own, so neighbours in the batch share nothing but the call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .bits import same_bits
from .original import original
from .visible import Piece, Visibility, from_mask

FLASH = "_scaled_dot_product_flash_attention_for_cpu"
BASE_ROWS = 16
_CANDIDATES = (4, 8, 32)

_rows_proven: dict[tuple[torch.dtype, int, int, int], tuple[int, ...]] = {}
_lock = threading.Lock()
_local = threading.local()


@dataclass(frozen=True)
class Call:
    """Pieces with the same padded length and number of row blocks: one call of the kernel.

    mask: (pieces, 1, blocks, rows, keys), additive, shared by all layers of a forward pass.
    """

    pieces: tuple[Piece, ...]
    rows: int
    blocks: int
    mask: Tensor


@dataclass
class Plan:
    """What one mask asks for; made once a forward pass and used by every layer."""

    visible: Visibility
    calls: dict[tuple[object, ...], list[Call]]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None,
              causal: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Scaled dot-product attention with grouped queries.

    Args:
        q: (B, H, T, D). k: (B, Hk, S, D). v: (B, Hk, S, Dv); H is a multiple of Hk.
        mask: None, bool (True: seen) or additive, broadcasting to (B, H, T, S).
        scale: factor on the scores; None means 1 / sqrt(D).
        causal: without a mask, query t sees keys 0..t.

    Returns:
        (B, H, T, Dv) and the log of the sum of exponentials, float32 (B, H, T). A query that sees
        nothing gets zeros and -inf.
    """
    batch, heads, queries, width = q.shape
    scale = width**-0.5 if scale is None else scale
    if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
        return _head_by_head(q, k, v, mask, scale)
    size = max(width, v.shape[-1])
    out = q.new_zeros(batch, heads, queries, v.shape[-1])
    sums = q.new_full((batch, heads, queries), -torch.inf, dtype=_sum_type(q.dtype))
    plan = _plan(mask, batch, queries, k.shape[2], causal)
    shared = heads // k.shape[1]
    key = (shared, q.dtype, size, torch.get_num_threads())
    if key not in plan.calls:
        plan.calls[key] = _calls(plan.visible, shared, q.dtype, size)
    if width != v.shape[-1]:  # zeros in the inner dimension add exact zeros
        q, k, v = (pad(x, (0, size - x.shape[-1])) for x in (q, k, v))
    for call in plan.calls[key]:
        _run(call, q, k, v, scale, out, sums)
    return out, sums


def _run(call: Call, q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor,
         sums: Tensor) -> None:  # fmt: skip
    count, length, size = len(call.pieces), call.mask.shape[-1], q.shape[-1]
    kv_heads = k.shape[1]
    shared = q.shape[1] // kv_heads
    total = call.blocks * call.rows
    # One task alone would run with all threads inside; two tasks never do.
    slots = max(count, 2) if kv_heads * call.blocks == 1 else count
    keys = k.new_zeros(slots, kv_heads, length, size)
    values = v.new_zeros(slots, kv_heads, length, size)
    rows = q.new_zeros(slots, kv_heads, total, size)
    for slot, piece in enumerate(call.pieces):
        seen = int(piece.counts.max())
        keys[slot, :, :seen] = k[piece.batch][:, piece.keys]
        values[slot, :, :seen] = v[piece.batch][:, piece.keys]
        chosen = q[piece.batch][:, _span(piece.rows)]
        rows[slot, :, : shared * len(piece.rows)] = chosen.reshape(kv_heads, -1, size)
    mask = call.mask.expand(slots, kv_heads, -1, -1, -1).reshape(slots, -1, call.rows, length)
    blocks = rows.view(slots, kv_heads * call.blocks, call.rows, size)
    result, logs = original(FLASH)(blocks, keys, values, 0.0, False, attn_mask=mask, scale=scale)
    result = result.reshape(slots, kv_heads, total, size)
    logs = logs.reshape(slots, kv_heads, total)
    for slot, piece in enumerate(call.pieces):
        used = shared * len(piece.rows)
        span = _span(piece.rows)
        one = result[slot, :, :used, : out.shape[-1]]
        out[piece.batch][:, span] = one.reshape(q.shape[1], len(piece.rows), -1)
        sums[piece.batch][:, span] = logs[slot, :, :used].reshape(q.shape[1], -1).to(sums.dtype)


def _calls(visible: Visibility, shared: int, dtype: torch.dtype, size: int) -> list[Call]:
    groups: dict[tuple[int, int, int], list[Piece]] = {}
    for piece in visible.pieces:
        sizes = proven_rows(dtype, size, piece.padded)
        needed = shared * len(piece.rows)
        rows = next((count for count in sizes if count >= needed), sizes[-1])
        groups.setdefault((piece.padded, rows, -(-needed // rows)), []).append(piece)
    calls = []
    for (padded, rows, blocks), pieces in groups.items():
        slots = max(len(pieces), 2)
        kind = dtype if visible.bias is None else _sum_type(dtype)
        mask = torch.full((slots, blocks * rows, padded), -torch.inf, dtype=kind)
        mask[:, :, 0] = 0  # rows that are padding see one key, to stay finite
        for slot, piece in enumerate(pieces):
            seen = np.arange(padded)[None] < piece.counts[:, None]
            used = torch.zeros(seen.shape, dtype=kind).masked_fill_(
                torch.from_numpy(~seen), -torch.inf
            )
            if visible.bias is not None:
                width = int(piece.counts.max())
                chosen = visible.bias.expand(len(visible.bias), 1, -1, -1)
                own = chosen[piece.batch % len(chosen), 0][torch.from_numpy(piece.rows)]
                used[:, :width] += own[:, piece.keys].to(kind)
            mask[slot, : shared * len(piece.rows)] = used.repeat(shared, 1)
        mask = mask.view(slots, 1, blocks, rows, padded)
        keep = slots if len(pieces) > 1 else 1
        calls.append(Call(tuple(pieces), rows, blocks, mask[:keep]))
    return calls


def proven_rows(dtype: torch.dtype, size: int, keys: int) -> tuple[int, ...]:
    """Numbers of query rows a call may have: those whose bits equal BASE_ROWS's, rising."""
    name = (dtype, size, keys, torch.get_num_threads())
    found = _rows_proven.get(name)
    if found is None:
        with _lock:
            found = _rows_proven[name] = _probe(dtype, size, keys)
    return found


def _probe(dtype: torch.dtype, size: int, keys: int) -> tuple[int, ...]:
    draw = torch.Generator().manual_seed(size * 1_000_003 + keys)
    total = 2 * max(_CANDIDATES)
    q = (3 * torch.randn(1, 1, total, size, generator=draw)).to(dtype)
    k = torch.randn(1, 1, keys, size, generator=draw).to(dtype).expand(2, -1, -1, -1)
    v = torch.randn(1, 1, keys, size, generator=draw)
    places = torch.randperm(keys, generator=draw)
    v[:, :, places[: keys // 2]] = -v[:, :, places[keys // 2 :]]
    v = v.to(dtype).expand(2, -1, -1, -1)
    mask = torch.zeros(1, 1, 1, keys, dtype=dtype)
    mask[..., keys - 7 :] = -torch.inf

    def blocked(rows: int) -> Tensor:
        parts = [
            original(FLASH)(q[:, :, i : i + rows].expand(2, -1, -1, -1), k, v, 0.0, False,
                            attn_mask=mask.expand(2, 1, rows, keys), scale=0.3)[0][:1]
            for i in range(0, total, rows)
        ]  # fmt: skip
        return torch.cat(parts, 2)

    base = blocked(BASE_ROWS)
    return tuple(sorted([n for n in _CANDIDATES if same_bits(blocked(n), base)] + [BASE_ROWS]))


def _plan(mask: Tensor | None, batch: int, queries: int, keys: int, causal: bool) -> Plan:
    """The plan of this mask: every layer of a forward pass brings the same tensor."""
    if mask is None:
        return Plan(from_mask(None, batch, queries, keys, causal), {})
    name = (batch, queries, keys, -1 if mask.is_inference() else mask._version)
    known: tuple[object, weakref.ref[Tensor], Plan] | None = getattr(_local, "plan", None)
    if known is not None and known[0] == name and known[1]() is mask:
        return known[2]
    full = mask[(None,) * (4 - mask.dim())].expand(-1, -1, queries, keys)
    plan = Plan(from_mask(full, batch, queries, keys, causal), {})
    _local.plan = (name, weakref.ref(mask), plan)
    return plan


def _span(rows: Sequence[int] | np.ndarray) -> slice | Tensor:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return slice(first, last + 1)
    return torch.as_tensor(np.asarray(rows))


def _sum_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _head_by_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor,
                  scale: float) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Masks that differ between heads: each head as an attention of its own."""
    shared = q.shape[1] // k.shape[1]
    parts = [
        attention(q[:, h : h + 1], k[:, h // shared : h // shared + 1],
                  v[:, h // shared : h // shared + 1], mask[..., h : h + 1, :, :], scale, False)
        for h in range(q.shape[1])
    ]  # fmt: skip
    return torch.cat([out for out, _ in parts], 1), torch.cat([logs for _, logs in parts], 1)
