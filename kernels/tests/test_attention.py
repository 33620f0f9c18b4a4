"""Attention through Triton's interpreter: one result, however the keys came in."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from nondet_kernels import attention as at
from nondet_kernels import attention_plan as plan
from nondet_kernels.attention_hopper import flat

H, HK, D, LQ, LK = 4, 2, 16, 20, 100


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and splits small enough for short sequences to have several."""
    monkeypatch.setattr(plan, "SPLIT", 64)
    monkeypatch.setattr(plan, "BLOCK", 32)


def tensors(batch: int = 2, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    gen = torch.Generator().manual_seed(3)
    return [
        torch.randn((batch, h, n, D), generator=gen).to(dtype)
        for h, n in ((H, LQ), (HK, LK), (HK, LK))
    ]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_against_float64(causal: bool, parallel: bool, dtype: torch.dtype) -> None:
    q, k, v = tensors(dtype=dtype)
    got = at.attention(q, k, v, causal=causal, parallel=parallel)
    want = at.attention_reference(q, k, v, causal=causal)
    torch.testing.assert_close(got, want, rtol=3e-3, atol=3e-3 if dtype == torch.float16 else 2e-6)


@pytest.mark.parametrize("window", [1, 70])
def test_window(window: int) -> None:
    q, k, v = tensors()
    got = at.attention(q, k, v, window=window)
    torch.testing.assert_close(
        got, at.attention_reference(q, k, v, window=window), rtol=3e-3, atol=3e-3
    )
    last = at.attention(q[:, :, -1:], k, v, window=window, parallel=True)
    assert torch.equal(last[:, :, 0], got[:, :, -1])


def test_a_kernel_of_its_own_adds_the_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors()
    full = at.attention(q, k, v)
    monkeypatch.setattr(plan, "MERGE", 1)
    monkeypatch.setattr(plan, "PARTS", 0.01)  # two splits a program
    for window in (None, 40):
        step = at.attention(q[:, :, -1:], k, v, window=window, parallel=True)
        want = full if window is None else at.attention(q, k, v, window=window, parallel=False)
        assert torch.equal(step[:, :, 0], want[:, :, -1])


@pytest.mark.parametrize("i", [0, LQ - 1])
def test_decode_equals_prefill(i: int) -> None:
    q, k, v = tensors()
    full, n = at.attention(q, k, v), LK - LQ + i + 1
    for parallel in (False, True):
        step = at.attention(q[:, :, i : i + 1], k[:, :, :n], v[:, :, :n], parallel=parallel)
        assert torch.equal(step[:, :, 0], full[:, :, i])
    step = at.attention(q[:, :, i : i + 1], k, v, key_end=torch.tensor([n, n]))
    assert torch.equal(step[:, :, 0], full[:, :, i])


@pytest.mark.parametrize("size", [1, 7])
def test_chunked_prefill_equals_prefill(size: int) -> None:
    q, k, v = tensors(1)
    full = at.attention(q, k, v)
    for first in range(0, LQ, size) if size > 1 else (0, 5, LQ - 1):
        stop = min(LQ, first + size)
        n = LK - LQ + stop
        part = at.attention(q[:, :, first:stop], k[:, :, :n], v[:, :, :n])
        assert torch.equal(part, full[:, :, first:stop])


@pytest.mark.parametrize("pad", [1, 32])
def test_left_padding_does_not_matter(pad: int) -> None:
    q, k, v = tensors(1)
    full = at.attention(q, k, v)
    wide = [torch.full((1, HK, LK + pad, D), math.nan).half() for _ in range(2)]
    for whole, part in zip(wide, (k, v), strict=True):
        whole[:, :, pad:] = part
    assert torch.equal(at.attention(q, *wide, key_start=torch.tensor([pad])), full)
    # The mutation: the pad not masked. It must show.
    open_pad = [torch.nan_to_num(t, nan=0.5) for t in wide]
    assert not torch.equal(at.attention(q, *open_pad), full)


def test_queries_of_the_padding_give_zeros() -> None:
    q, k, v = (t[:1] for t in tensors())
    # Eight queries are one whole tile: the interpreter's product (NumPy's) minds a row's place.
    got = at.attention(q, k[:, :, :LQ], v[:, :, :LQ], key_start=torch.tensor([8]))
    assert not got[:, :, :8].any()
    real = at.attention(q[:, :, 8:], k[:, :, 8:LQ], v[:, :, 8:LQ])
    assert torch.equal(got[:, :, 8:], real)
    none = at.attention(q, k[:, :, :LQ], v[:, :, :LQ], key_start=torch.tensor([LQ]))
    assert not none.any()


def test_sequences_end_to_end() -> None:
    q, k, v = tensors()
    sizes = [(LQ, LK), (7, 33)]
    flat = [torch.cat([t[b, :, : n[min(i, 1)]].transpose(0, 1) for b, n in enumerate(sizes)])
            for i, t in enumerate((q, k, v))]  # fmt: skip
    cu_q, cu_k = torch.tensor([0, LQ, LQ + 7]), torch.tensor([0, LK, LK + 33])
    got = at.attention(*flat, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    for b, (lq, lk) in enumerate(sizes):
        alone = at.attention(q[b : b + 1, :, :lq], k[b : b + 1, :, :lk], v[b : b + 1, :, :lk])
        assert torch.equal(got[cu_q[b] : cu_q[b + 1]].transpose(0, 1), alone[0])


def test_neighbours_do_not_matter() -> None:
    q, k, v = tensors()
    full = at.attention(q, k, v)
    for t in (q, k, v):
        t[1] = math.nan
    assert torch.equal(at.attention(q, k, v)[0], full[0])
    assert torch.equal(at.attention(q[:1], k[:1], v[:1])[0], full[0])


def test_rows_of_a_tile_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(1)
    base = at.attention(q, k, v)
    monkeypatch.setattr(plan, "shape_of", lambda *_: (64, 4, 1, "loads"))
    torch.testing.assert_close(at.attention(q, k, v), base, rtol=2e-3, atol=2e-3)


def test_float64_goes_sequence_by_sequence() -> None:
    q, k, v = tensors(dtype=torch.float64)
    got = at.attention(q, k, v)
    torch.testing.assert_close(got, at.attention_reference(q, k, v), rtol=1e-13, atol=1e-13)
    assert torch.equal(at.attention(q[1:], k[1:], v[1:]), got[1:])
    pad, end = torch.tensor([0, 3]), torch.tensor([LK - 5, LK])
    ragged = at.attention(q, k, v, key_start=pad, key_end=end, window=9)
    want = at.attention_reference(q, k, v, key_start=pad, key_end=end, window=9)
    torch.testing.assert_close(ragged, want, rtol=1e-13, atol=1e-13)
    cu_q, cu_k = torch.tensor([0, LQ]), torch.tensor([0, LK])
    flat = at.attention(
        *(t[0].transpose(0, 1) for t in (q, k, v)), cu_seqlens_q=cu_q, cu_seqlens_k=cu_k
    )
    assert torch.equal(flat.transpose(0, 1), got[0])


def test_strides_and_mistakes() -> None:
    q, k, v = tensors(1)
    full = at.attention(q, k, v)
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(at.attention(*turned), full)
    stepped = [torch.stack([t, t], -1).flatten(-2)[..., ::2] for t in (q, k, v)]
    assert torch.equal(at.attention(*stepped), full)
    assert torch.equal(at.attention(-q, k, v, scale=-0.25), at.attention(q, k, v, scale=0.25))
    assert at.attention(q[:, :, :0], k, v).numel() == 0
    assert not at.attention(q, k[:, :, :0], v[:, :, :0]).any()
    with pytest.raises(ValueError, match="window"):
        at.attention(q, k, v, window=3, causal=False)
    with pytest.raises(ValueError, match="do not fit"):
        at.attention(q[:, :3], k, v)
    with pytest.raises(TypeError):
        at.attention(q, k.float(), v)


def test_keys_as_one_matrix() -> None:
    x = torch.arange(2 * 3 * 5 * 16).bfloat16().view(2, 3, 5, 16)
    steps = torch.randn(2, 5, 8, 16).bfloat16().transpose(1, 2)
    ends = torch.randn(7, 3, 16).bfloat16().transpose(0, 1)[None]
    for t in (x, x[:, :, :3], x[:1, :1], steps, steps[:, 2:5], ends):
        found = flat(t)
        assert found is not None
        shape, strides, rows_b, rows_h, columns = found
        whole = t.as_strided(shape, strides)
        for b, h in itertools.product(range(t.shape[0]), range(t.shape[1])):
            row, column = b * rows_b + h * rows_h, h * columns
            part = whole[row : row + t.shape[2], column : column + 16]
            assert torch.equal(part, t[b, h])
    assert flat(x.transpose(2, 3)) is None
    assert flat(x[..., :4].repeat(1, 1, 1, 5)[..., 1:]) is None  # not on 16 bytes
