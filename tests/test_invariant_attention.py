"""CPU attention: padding, neighbours, chunks and caches change no bit of a row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nondet.invariant import cpu_attention, default_kernels, invariant
from nondet.invariant.bits import same_bits
from nondet.invariant.cpu_attention import attention, proven_rows
from nondet.invariant.visible import KEYS, from_mask

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def qkv(batch: int, heads: int, kv_heads: int, length: int, size: int, dtype: torch.dtype,
        seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    q = 3 * torch.randn(batch, heads, length, size, generator=draw)
    k = torch.randn(batch, kv_heads, length, size, generator=draw)
    v = torch.randn(batch, kv_heads, length, size, generator=draw)
    v = torch.ldexp(v, torch.randint(-3, 4, v.shape, generator=draw))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def causal_mask(length: int, pads: int, total: int | None = None) -> Tensor:
    """(1, 1, T, S) with ``pads`` keys cut off on the left and free places up to ``total``."""
    keys = total or length
    seen = torch.ones(length, keys, dtype=torch.bool).tril()
    seen[:, :pads] = False
    seen[:, length:] = False
    return seen[None, None]


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    shared = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(shared, 1) for x in (k, v))
    scores = q.double() @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    return torch.where(mask.any(-1, keepdim=True), scores.softmax(-1), 0.0) @ values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (8, 1)])
def test_prefill_chunks_and_decode_agree(dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    for length in (1, 2, 63, 64, 65, 130):
        q, k, v = qkv(1, heads, kv_heads, length, 32, dtype)
        whole, sums = attention(q, k, v, None, None, True)
        for t in {0, length // 2, max(0, length - 2), length - 1}:
            one, log = attention(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1],
                                 None, None, False)  # fmt: skip
            assert same_bits(one, whole[:, :, t : t + 1]), (length, t)
            assert same_bits(log, sums[:, :, t : t + 1])
        cut = length // 3
        mask = causal_mask(length, 0)[:, :, cut:]
        later, _ = attention(q[:, :, cut:], k, v, mask, None, False)
        assert same_bits(later, whole[:, :, cut:])


def test_several_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for heads, kv_heads in ((1, 1), (9, 3)):
            for dtype in (torch.bfloat16, torch.float32):
                q, k, v = qkv(3, heads, kv_heads, 70, 64, dtype)
                whole, _ = attention(q, k, v, None, None, True)
                for row in range(3):
                    part = [x[row : row + 1] for x in (q[:, :, 69:], k, v)]
                    one, _ = attention(*part, None, None, False)
                    assert same_bits(one, whole[row : row + 1, :, 69:])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_left_padding_from_0_to_70(dtype: torch.dtype) -> None:
    # A11: a padded length of 1 modulo 32 once moved logits by 30 to 50.
    length = 27
    q, k, v = qkv(1, 6, 2, length, 48, dtype)
    whole, _ = attention(q, k, v, causal_mask(length, 0), None, False)
    for pads in range(71):

        def left(x: Tensor, pads: int = pads) -> Tensor:
            junk = torch.full((*x.shape[:2], pads, x.shape[-1]), math.nan, dtype=dtype)
            return torch.cat([junk, x], 2)

        mask = causal_mask(length + pads, pads)
        padded, _ = attention(left(q), left(k), left(v), mask, None, False)
        assert same_bits(padded[:, :, pads:], whole), pads
        assert not bool(padded[:, :, :pads].any())
        additive = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        eager, _ = attention(left(q), left(k), left(v), additive, None, False)
        assert same_bits(eager, padded)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_neighbours_and_free_cache_places(dtype: torch.dtype) -> None:
    lengths = (5, 70, 33, 64, 1)
    widest = max(lengths)
    parts = [qkv(1, 4, 2, n, 32, dtype, seed=n) for n in lengths]
    masks = [causal_mask(widest, widest - n, total=100) for n in lengths]

    def place(x: Tensor, total: int) -> Tensor:
        full = torch.full((1, x.shape[1], total, x.shape[-1]), math.inf, dtype=dtype)
        full[:, :, widest - x.shape[2] : widest] = x
        return full

    q = torch.cat([place(q, widest) for q, _, _ in parts])
    k = torch.cat([place(k, 100) for _, k, _ in parts])
    v = torch.cat([place(v, 100) for _, _, v in parts])
    for chosen in (slice(None), slice(-1, None), slice(-3, -1)):
        mask = torch.cat(masks)[:, :, chosen]
        out, _ = attention(q[:, :, chosen], k, v, mask, None, False)
        for row, (n, part) in enumerate(zip(lengths, parts, strict=True)):
            alone, _ = attention(*part, causal_mask(n, 0), None, False)
            got = out[row : row + 1][:, :, -min(n, out.shape[2]) :]
            if chosen == slice(-3, -1):
                continue_at = slice(max(0, n - 3), n - 1)
                alone = alone[:, :, continue_at]
                got = out[row : row + 1][:, :, out.shape[2] - alone.shape[2] :]
            else:
                alone = alone[:, :, -got.shape[2] :]
            assert same_bits(got, alone), (row, chosen)


def test_masks_of_every_kind_against_float64() -> None:
    # A13: rows that see nothing are zero, and reach no other row.
    draw = torch.Generator().manual_seed(3)
    for seed in range(40):
        batch, heads, kv_heads = 1 + seed % 3, 4, (1, 2, 4)[seed % 3]
        length, size = 1 + (seed * 13) % 90, (8, 33, 64)[seed % 3]
        q, k, v = qkv(batch, heads, kv_heads, length, size, torch.float32, seed)
        seen = torch.rand(batch, 1, length, length, generator=draw) < (0.1, 0.5, 0.95)[seed % 3]
        if seed % 2:
            seen &= torch.ones(length, length, dtype=torch.bool).tril()
        out, sums = attention(q, k, v, seen, None, False)
        torch.testing.assert_close(out.double(), exact(q, k, v, seen), rtol=1e-4, atol=1e-4)
        blind = ~seen.any(-1).expand(-1, heads, -1)
        assert not bool(out[blind].any())
        assert bool((sums[blind] == -torch.inf).all())
        row = seed % batch
        alone, _ = attention(
            *(x[row : row + 1] for x in (q, k, v)), seen[row : row + 1], None, False
        )
        assert same_bits(alone, out[row : row + 1])


def test_holes_in_a_mask_do_not_count() -> None:
    # Keys that are seen are used in their order, wherever they stand.
    q, k, v = qkv(1, 2, 2, 20, 16, torch.float32)
    gaps = torch.zeros(1, 1, 20, 40, dtype=torch.bool)
    gaps[..., ::2] = torch.ones(20, 20, dtype=torch.bool).tril()
    wide_k, wide_v = (torch.full((1, 2, 40, 16), math.nan).index_copy_(
        2, torch.arange(0, 40, 2), x) for x in (k, v))  # fmt: skip
    wanted, _ = attention(q, k, v, None, None, True)
    got, _ = attention(q, wide_k, wide_v, gaps, None, False)
    assert same_bits(got, wanted)


def test_sliding_window_rows_are_their_own() -> None:
    q, k, v = qkv(1, 4, 2, 80, 32, torch.float32)
    seen = causal_mask(80, 0) & ~torch.ones(80, 80, dtype=torch.bool).tril(-16)
    out, _ = attention(q, k, v, seen, None, False)
    torch.testing.assert_close(out.double(), exact(q, k, v, seen), rtol=1e-4, atol=1e-5)
    last, _ = attention(q[:, :, 79:], k[:, :, 64:], v[:, :, 64:], None, None, False)
    assert same_bits(last, out[:, :, 79:])


def test_bias_scale_and_masks_for_each_head() -> None:
    q, k, v = qkv(2, 4, 2, 21, 16, torch.float32)
    bias = torch.randn(2, 1, 21, 21).masked_fill(~causal_mask(21, 0), -torch.inf)
    out, _ = attention(q, k, v, bias, 0.3, False)
    keys, values = k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    scores = q.double() @ keys.transpose(-1, -2) * 0.3 + bias.double()
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ values, rtol=1e-4, atol=1e-4)
    heads = torch.rand(2, 4, 21, 21) < 0.7
    got, _ = attention(q, k, v, heads, None, False)
    torch.testing.assert_close(got.double(), exact(q, k, v, heads), rtol=1e-4, atol=1e-4)
    narrow, _ = attention(q, k, v[..., :5], None, None, True)
    full, _ = attention(q, k, v, None, None, True)
    assert narrow.shape[-1] == 5
    torch.testing.assert_close(narrow, full[..., :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_no_less_accurate_than_torch(dtype: torch.dtype) -> None:
    ours, theirs = [], []
    for seed in range(6):
        q, k, v = qkv(2, 4, 4, 70, 64, dtype, seed)
        wanted = exact(q, k, v, causal_mask(70, 0))
        ours.append((attention(q, k, v, None, None, True)[0].double() - wanted).abs())
        with default_kernels():
            own = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        theirs.append((own.double() - wanted).abs())
    our, their = torch.stack(ours), torch.stack(theirs)
    assert float(our.mean()) <= 1.1 * float(their.mean())
    assert float(our.max()) <= 1.1 * float(their.max())


def test_the_fused_operation_is_switched_too() -> None:
    q, k, v = qkv(3, 4, 4, 40, 32, torch.bfloat16)
    with invariant(ops=("attention",), device="cpu"), torch.inference_mode():
        whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        one = torch.nn.functional.scaled_dot_product_attention(q[1:2, :, 39:], k[1:2], v[1:2])
    assert same_bits(one, whole[1:2, :, 39:])


def test_pieces_count_from_the_first_key_seen() -> None:
    visible = from_mask(causal_mask(70, 5), 1, 70, 70, False)
    first, second = visible.pieces
    assert (first.padded, second.padded) == (KEYS, 2 * KEYS)
    assert first.keys == slice(5, 69)
    assert second.keys == slice(5, 70)
    assert list(second.counts) == [65]


def test_mutation_pad_that_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(1, 4, 2, 30, 32, torch.float32)
    wanted, _ = attention(q, k, v, None, None, True)
    real = cpu_attention._mask_rows

    def unmasked(piece: object, padded: int, bias: Tensor | None, kind: torch.dtype) -> Tensor:
        mask = real(piece, padded, bias, kind)  # type: ignore[arg-type]
        mask[:, -1] = 0  # the last place is padding for every row here
        return mask

    monkeypatch.setattr(cpu_attention, "_mask_rows", unmasked)
    got, _ = attention(q, k, v, None, None, True)
    assert not same_bits(got, wanted)


def test_mutation_padded_length_follows_the_batch() -> None:
    # torch's own kernel on a padded batch is this mutation; the comparison above sees it.
    length, found = 27, []
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = qkv(1, 6, 6, length, 48, dtype)
        with default_kernels():
            run = torch.nn.functional.scaled_dot_product_attention
            whole = run(q, k, v, attn_mask=causal_mask(length, 0))
            for pads in (1, 6, 38, 70):
                left = [torch.cat([torch.randn(1, 6, pads, 48).to(dtype), x], 2) for x in (q, k, v)]
                padded = run(*left, attn_mask=causal_mask(length + pads, pads))
                found.append(not same_bits(padded[:, :, pads:], whole))
    assert any(found)


def test_probe_of_row_blocks() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        sizes = proven_rows(dtype, 32, 128)
        assert cpu_attention.BASE_ROWS in sizes
        assert list(sizes) == sorted(sizes)


def test_gradient_is_the_exact_one() -> None:
    from nondet.invariant.op import attend

    q, k, v = qkv(2, 4, 2, 9, 8, torch.float64)
    mask = causal_mask(9, 0).expand(2, 1, 9, 9).clone()
    mask[1, :, :, :2] = False
    for given in (mask, None):
        ours = [x.clone().requires_grad_() for x in (q, k, v)]
        theirs = [x.clone().requires_grad_() for x in (q, k, v)]
        weights = torch.linspace(-1, 1, 8, dtype=torch.float64)
        (attend(*ours, given, 0.3, given is None) * weights).sum().backward()
        a, b, c = theirs
        keys, values = b.repeat_interleave(2, 1), c.repeat_interleave(2, 1)
        seen = causal_mask(9, 0) if given is None else given
        scores = (a @ keys.transpose(-1, -2) * 0.3).masked_fill(~seen, -1e300)
        p = torch.where(seen.any(-1, keepdim=True), scores.softmax(-1), 0.0)
        ((p @ values) * weights).sum().backward()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
