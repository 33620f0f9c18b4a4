"""Attention on the CPU whose rows depend only on their own query and the keys they see.

Each call of torch's flash kernel gets query rows of one fixed number and keys rounded up to whole
blocks (``visible``), gathered to buffers of their own. Heads that share keys are stacked as rows,
so that grouped-query decode fills a block. Inside the kernel each (sequence, head, block) is a task
of its own, so neighbours in the batch share nothing but the call.

Places behind the last key hold the row's own first key again, under a mask of -inf: their weight
is an exact zero and no other sequence's values can reach the row, not even as NaN.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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
class Sizes:
    """Shape of one attention call: B, H, Hk, T, S and the larger head size."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int

    @property
    def shared(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Call:
    """Pieces with the same padded length and number of row blocks: one call of the kernel.

    slots: sequences in the call. blocks: row blocks a key head. rows: query rows a block.
    row_index, key_index: which rows of q (B H T, D) and of k, v (B Hk S, D) go in, in order.
    mask: additive, (slots, 1 or Hk blocks, rows, keys).
    """

    slots: int
    blocks: int
    rows: int
    row_index: Tensor
    key_index: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Recipe:
    """All calls of one attention, and where each of the B H T results is found in their rows.

    Index -1 + the number of rows is a row of zeros, for queries that see nothing (``blind``).
    """

    calls: tuple[Call, ...]
    place: Tensor
    blind: bool


@dataclass
class Plan:
    """What one mask asks for; made once a forward pass and used by every layer."""

    visible: Visibility
    recipes: dict[tuple[object, ...], Recipe]


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
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, sums = _attended(q, k, v, mask, scale, causal)
    assert sums is not None
    return out, sums


def attention_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float,
                   causal: bool) -> Tensor:  # fmt: skip
    """``attention`` without the log sums, which models do not ask for."""
    return _attended(q, k, v, mask, scale, causal, False)[0]


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool,
              wanted: bool = True) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    if mask is not None and mask.dim() > 2 and mask.shape[-3] > 1:
        return _head_by_head(q, k, v, mask, scale)
    wide, narrow = max(q.shape[-1], v.shape[-1]), v.shape[-1]
    if q.shape[-1] != narrow:  # zeros in the inner dimension add exact zeros
        q, k, v = (pad(x, (0, wide - x.shape[-1])) for x in (q, k, v))
    sizes = Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], wide)
    plan = _plan(mask, sizes, causal)
    name = (sizes, q.dtype, torch.get_num_threads())
    if name not in plan.recipes:
        plan.recipes[name] = _recipe(plan.visible, sizes, q.dtype)
    recipe = plan.recipes[name]
    q, k, v = (x.reshape(-1, wide) for x in (q, k, v))
    results = [_run(call, q, k, v, sizes, scale) for call in recipe.calls]
    out = _joined([x for x, _ in results], recipe, 0.0, q)
    shape = (sizes.batch, sizes.heads, sizes.queries)
    out = out.view(*shape, wide)
    out = out if wide == narrow else out[..., :narrow]
    if not wanted:
        return out, None
    sums = _joined(
        [x for _, x in results], recipe, -torch.inf, q.new_empty(0, dtype=_wide(q.dtype))
    )
    return out, sums.view(shape)


def _run(call: Call, q: Tensor, k: Tensor, v: Tensor, sizes: Sizes,
         scale: float) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of results (slots Hk blocks rows, D) and their log sums."""
    shape = (call.slots, sizes.kv_heads, -1, sizes.width)
    keys = k.index_select(0, call.key_index).view(shape)
    values = v.index_select(0, call.key_index).view(shape)
    rows = q.index_select(0, call.row_index)
    rows = rows.view(call.slots, sizes.kv_heads * call.blocks, call.rows, sizes.width)
    out, sums = original(FLASH)(rows, keys, values, 0.0, False, attn_mask=call.mask, scale=scale)
    return out.reshape(-1, sizes.width), sums.reshape(-1)


def _joined(parts: list[Tensor], recipe: Recipe, blind: float, like: Tensor) -> Tensor:
    if recipe.blind or not parts:
        shape = (1, *like.shape[1:]) if like.dim() > 1 else (1,)
        parts = [*parts, like.new_full(shape, blind)]
    rows = parts[0] if len(parts) == 1 else torch.cat([part.to(like.dtype) for part in parts])
    return rows.index_select(0, recipe.place)


def _recipe(visible: Visibility, sizes: Sizes, dtype: torch.dtype) -> Recipe:
    groups: dict[tuple[int, int, int], list[Piece]] = {}
    for piece in visible.pieces:
        proven = proven_rows(dtype, sizes.width, piece.padded)
        needed = sizes.shared * len(piece.rows)
        rows = next((count for count in proven if count >= needed), proven[-1])
        groups.setdefault((piece.padded, rows, -(-needed // rows)), []).append(piece)
    place = np.full((sizes.batch, sizes.kv_heads, sizes.shared, sizes.queries), -1, dtype=np.int64)
    calls, start = [], 0
    for (padded, rows, blocks), pieces in groups.items():
        total = rows * blocks
        for slot, piece in enumerate(pieces):
            first = start + slot * sizes.kv_heads * total
            used = np.arange(sizes.shared * len(piece.rows)).reshape(sizes.shared, -1)
            heads = np.arange(sizes.kv_heads)[:, None, None] * total
            place[piece.batch][:, :, piece.rows] = first + heads + used
        call = _call(pieces, padded, rows, blocks, visible.bias, sizes, dtype)
        calls.append(call)
        start += call.slots * sizes.kv_heads * total
    blind = bool((place < 0).any())
    place[place < 0] = start
    return Recipe(tuple(calls), torch.from_numpy(place.reshape(-1)), blind)


def _call(pieces: list[Piece], padded: int, rows: int, blocks: int, bias: Tensor | None,
          sizes: Sizes, dtype: torch.dtype) -> Call:  # fmt: skip
    total = rows * blocks
    # One task alone would run with all threads inside; two tasks never do.
    slots = max(len(pieces), 2) if sizes.kv_heads * blocks == 1 else len(pieces)
    row_index = np.zeros((slots, sizes.kv_heads, total), dtype=np.int64)
    key_index = np.zeros((slots, sizes.kv_heads, padded), dtype=np.int64)
    kind = dtype if bias is None else _wide(dtype)
    mask = torch.full((slots, total, padded), -torch.inf, dtype=kind)
    mask[:, :, 0] = 0  # rows that are padding see one key, to stay finite
    for slot, piece in enumerate(pieces):
        heads = np.arange(sizes.kv_heads)[:, None]
        positions = _positions(piece, padded)
        key_index[slot] = (piece.batch * sizes.kv_heads + heads) * sizes.keys + positions
        stacked = np.arange(sizes.shared)[:, None] * sizes.queries + piece.rows
        stacked = np.pad(stacked.reshape(-1), (0, total - stacked.size), mode="edge")
        base = (piece.batch * sizes.kv_heads + heads) * sizes.shared * sizes.queries
        row_index[slot] = base + stacked
        own = _mask_rows(piece, padded, bias, kind)
        mask[slot, : sizes.shared * len(piece.rows)] = own.repeat(sizes.shared, 1)
    mask = mask.view(slots, 1, blocks, rows, padded)
    if blocks > 1:
        mask = mask.expand(-1, sizes.kv_heads, -1, -1, -1)
    mask = mask.reshape(slots, -1, rows, padded)
    flat_rows, flat_keys = (torch.from_numpy(x.reshape(-1)) for x in (row_index, key_index))
    return Call(slots, blocks, rows, flat_rows, flat_keys, mask)


def _positions(piece: Piece, padded: int) -> NDArray[np.int64]:
    """Key positions of a piece, filled up with its first one."""
    if isinstance(piece.keys, slice):
        keys = np.arange(piece.keys.start, piece.keys.stop)
    else:
        keys = piece.keys
    return np.concatenate([keys, np.full(padded - len(keys), keys[0])])


def _mask_rows(piece: Piece, padded: int, bias: Tensor | None, kind: torch.dtype) -> Tensor:
    """(rows, padded): 0 or the bias where a row sees a key, -inf elsewhere."""
    unseen = torch.from_numpy(np.arange(padded)[None] >= piece.counts[:, None])
    result = torch.zeros(unseen.shape, dtype=kind)
    if bias is not None:
        width = int(piece.counts.max())
        own = bias[piece.batch % len(bias), 0][torch.from_numpy(piece.rows)]
        result[:, :width] = own[:, piece.keys].to(kind)
    return result.masked_fill_(unseen, -torch.inf)


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


def _plan(mask: Tensor | None, sizes: Sizes, causal: bool) -> Plan:
    """The plan of this mask: every layer of a forward pass brings the same tensor."""
    if mask is None:
        visible = from_mask(None, sizes.batch, sizes.queries, sizes.keys, causal)
        return Plan(visible, {})
    shape = (sizes.batch, sizes.queries, sizes.keys)
    name = (shape, -1 if mask.is_inference() else mask._version)
    known: tuple[object, weakref.ref[Tensor], Plan] | None = getattr(_local, "plan", None)
    if known is not None and known[0] == name and known[1]() is mask:
        return known[2]
    full = mask[(None,) * (4 - mask.dim())].expand(-1, -1, sizes.queries, sizes.keys)
    plan = Plan(from_mask(full, *shape, causal), {})
    _local.plan = (name, weakref.ref(mask), plan)
    return plan


def _wide(dtype: torch.dtype) -> torch.dtype:
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
