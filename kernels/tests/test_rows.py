"""Norms, softmax, reductions and argmax through Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from nondet_kernels import argmax, norm, reduce, softmax
from nondet_kernels.support import LANES

F = torch.nn.functional
TYPES = [torch.float16, torch.float32, torch.float64]
ULP = {torch.float16: 2e-3, torch.float32: 2e-6, torch.float64: 1e-14}
CASES = [(1, TYPES[1]), (256, TYPES[1]), (1030, TYPES[1]), (257, TYPES[0]), (257, TYPES[2])]


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=gen, dtype=torch.float64) * 3).to(dtype)


def operations(d: int, dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    w, b = randn(d, dtype=dtype, seed=8), randn(d, dtype=dtype, seed=9)
    return {
        "rms_norm": lambda x: norm.rms_norm(x, w, 1e-6),
        "residual": lambda x: norm.rms_norm(x, w, 1e-6, residual=x * 0.5)[0],
        "layer_norm": lambda x: norm.layer_norm(x, [d], w, b),
        "softmax": lambda x: softmax.softmax(x, -1),
        "log_softmax": lambda x: softmax.log_softmax(x, -1),
        "sum": lambda x: reduce.sum(x, -1),
        "mean": lambda x: reduce.mean(x, -1),
        "argmax": lambda x: argmax.argmax(x, -1),
    }


@pytest.mark.parametrize(("d", "dtype"), CASES)
@pytest.mark.parametrize("name", list(operations(1, TYPES[1])))
def test_a_row_depends_on_nothing_else(name: str, d: int, dtype: torch.dtype) -> None:
    x, function = randn(3, d, dtype=dtype), operations(d, dtype)[name]
    wide = torch.full((3, d + 3), 5.0, dtype=dtype)
    wide[:, 1 : d + 1] = x
    poisoned = torch.full_like(x, math.nan)
    poisoned[1] = x[1]
    full = function(x)
    assert torch.equal(function(x[1:2].clone())[0], full[1])
    assert torch.equal(function(poisoned.roll(1, 0))[2], full[1])
    assert torch.equal(function(x.t().contiguous().t()), full)
    assert torch.equal(function(wide[:, 1 : d + 1]), full)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("d", [1, 257])
def test_accuracy(d: int, dtype: torch.dtype) -> None:
    x, w, b = randn(3, d, dtype=dtype), randn(d, dtype=dtype, seed=1), randn(d, dtype=dtype, seed=2)
    size = 40 * ULP[dtype]
    pairs = [
        (norm.rms_norm(x, w, 1e-6), norm.rms_norm_reference(x, w, 1e-6)),
        (norm.layer_norm(x, [d], w, b), norm.layer_norm_reference(x, w, b)),
        (softmax.softmax(x, -1), softmax.softmax_reference(x, -1)),
        (softmax.log_softmax(x, -1), softmax.log_softmax_reference(x, -1)),
        (reduce.sum(x, -1), reduce.sum_reference(x, -1)),
        (reduce.mean(x, -1), reduce.mean_reference(x, -1)),
    ]
    for got, want in pairs:
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.double(), want.double(), rtol=size, atol=size)


def test_sum_is_the_documented_tree() -> None:
    x = randn(2, 3000)
    lanes, lost = torch.zeros(2, LANES), torch.zeros(2, LANES)
    for part in F.pad(x, (0, 72)).split(LANES, 1):
        total = lanes + part
        back = total - lanes
        lost += (lanes - (total - back)) + (part - back)
        lanes = total
    lanes = lanes + lost
    while lanes.shape[1] > 1:
        lanes = lanes[:, ::2] + lanes[:, 1::2]
    assert torch.equal(reduce.sum(x, 1), lanes[:, 0])


@pytest.mark.parametrize("dim", [None, [], 0, 1, -1, [0, 2], (1, 2), [0, 1, 2]])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions_over_any_dimensions(dim: int | list[int] | None, keepdim: bool) -> None:
    x = randn(2, 3, 4, dtype=torch.float64)
    turned = x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    for y in (x, turned):
        for mine, theirs in ((reduce.sum, torch.sum), (reduce.mean, torch.mean)):
            got = mine(y, dim, keepdim)
            want = theirs(x, None if dim in (None, []) else dim, keepdim)
            assert got.shape == want.shape
            torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)
        assert torch.equal(reduce.sum(y, dim), reduce.sum(x, dim))


def test_reductions_of_long_rows_have_parts() -> None:
    x = randn(2, 2 * reduce.PART + 5)
    want = reduce.sum_reference(x, 1)
    torch.testing.assert_close(reduce.sum(x, 1), want, rtol=1e-6, atol=1e-4)
    assert torch.equal(reduce.sum(x.t().contiguous(), 0), reduce.sum(x, 1))


def test_types_of_reductions() -> None:
    half = torch.full((4, 70000), 1.0, dtype=torch.float16)
    assert reduce.sum(half, 1, dtype=torch.float32).tolist() == [70000.0] * 4
    assert reduce.mean(half, 1).dtype == torch.float16
    tiny = torch.tensor([1.0, 1e-12], dtype=torch.float64)
    assert reduce.mean(tiny).item() == tiny.mean().item()
    counts = torch.arange(6).view(2, 3)
    assert torch.equal(reduce.sum(counts, 1), counts.sum(1))
    assert torch.equal(reduce.mean(counts, 1, dtype=torch.float32), counts.float().mean(1))
    with pytest.raises(RuntimeError):
        reduce.mean(counts)
    with pytest.raises(IndexError):
        reduce.sum(half, 2)
    with pytest.raises(RuntimeError, match="once"):
        reduce.sum(half, [1, -1])


def test_empty_and_infinite() -> None:
    assert reduce.mean(torch.empty(3, 0), 1).isnan().all()
    assert torch.equal(reduce.sum(torch.empty(3, 0), 1), torch.zeros(3))
    assert reduce.mean(torch.empty(0, 3), 1).shape == (0,)
    assert reduce.mean(torch.empty(0, 3), 0).isnan().all()
    assert softmax.softmax(torch.empty(0, 4), 1).shape == (0, 4)
    assert norm.rms_norm(torch.empty(0, 4)).shape == (0, 4)
    x = torch.tensor([[1.0, math.inf, 2.0], [math.inf, -math.inf, 0.0], [1.0, math.nan, 2.0]])
    assert torch.equal(reduce.sum(x, 1).isnan(), torch.tensor([False, True, True]))
    assert reduce.sum(x, 1)[0] == math.inf
    masked = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf], [math.inf, 0.0]])
    for mine, theirs in (
        (softmax.softmax, torch.softmax),
        (softmax.log_softmax, torch.log_softmax),
    ):
        torch.testing.assert_close(mine(masked, 1), theirs(masked, 1), equal_nan=True)


@pytest.mark.parametrize("given", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("wanted", [None, torch.float16, torch.float32, torch.float64])
def test_half_to_float_and_other_types(given: torch.dtype, wanted: torch.dtype | None) -> None:
    x = randn(3, 40, dtype=given)
    for mine, theirs in (
        (softmax.softmax, torch.softmax),
        (softmax.log_softmax, torch.log_softmax),
    ):
        got, want = mine(x, 1, dtype=wanted), theirs(x, 1, dtype=wanted)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_softmax_over_any_dimension(dim: int) -> None:
    x = randn(3, 4, 5)
    got = softmax.softmax(x, dim)
    assert got.is_contiguous()
    torch.testing.assert_close(got, torch.softmax(x, dim))


def test_long_rows_of_softmax_have_chunks() -> None:
    x = randn(2, softmax.WIDE + 37)
    x[0, : softmax.WIDE] = -math.inf
    for mine, theirs in (
        (softmax.softmax, torch.softmax),
        (softmax.log_softmax, torch.log_softmax),
    ):
        torch.testing.assert_close(mine(x, 1), theirs(x, 1))
        assert torch.equal(mine(x[1:], 1), mine(x, 1)[1:])


def test_rms_norm_with_residual_is_the_two_steps() -> None:
    x, r, w = (
        randn(5, 96, dtype=torch.float16),
        randn(5, 96, dtype=torch.float16, seed=1),
        randn(96).half(),
    )
    y, h = norm.rms_norm(x, w, 1e-5, residual=r)
    assert torch.equal(h, x + r)
    assert torch.equal(y, norm.rms_norm(x + r, w, 1e-5))


@pytest.mark.parametrize("rows", [1, 257])
def test_residual_norm_across_the_row_counts_where_others_switch(rows: int) -> None:
    x = randn(rows, 8, dtype=torch.float16)
    full = norm.rms_norm(x, None, 1e-6, residual=x)[0]
    assert torch.equal(full[-1:], norm.rms_norm(x[-1:], None, 1e-6, residual=x[-1:])[0])


def test_rows_wider_than_the_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "CHUNK", 64)
    x, w, b = randn(3, 200), randn(200, seed=1), randn(200, seed=2)
    torch.testing.assert_close(norm.rms_norm(x, w, 1e-6), norm.rms_norm_reference(x, w, 1e-6))
    torch.testing.assert_close(norm.layer_norm(x, [200], w, b), norm.layer_norm_reference(x, w, b))
    y, h = norm.rms_norm(x, w, 1e-6, residual=x)
    assert torch.equal(h, x + x)
    assert torch.equal(y, norm.rms_norm(h, w, 1e-6))


def test_argmax_ties_and_nan() -> None:
    x = torch.tensor(
        [[1.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [2.0, math.nan, math.nan], [-math.inf] * 3]
    )
    for dtype in (torch.float16, torch.float32):
        assert argmax.argmax(x.to(dtype), 1).tolist() == [1, 0, 1, 0]
        assert torch.equal(argmax.argmax_reference(x.to(dtype), 1), argmax.argmax(x.to(dtype), 1))
    assert argmax.argmax(x[:2]).item() == 1
    assert argmax.argmax(x, 0, keepdim=True).shape == (1, 3)
    long = torch.zeros(1, argmax.CHUNK + 9)
    long[0, 5] = long[0, argmax.CHUNK + 3] = 1.0
    assert argmax.argmax(long, 1).item() == 5
    with pytest.raises(IndexError):
        argmax.argmax(torch.empty(2, 0), 1)


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "log_softmax"])
def test_backward(name: str) -> None:
    x, w, g = randn(4, 33), randn(33, seed=1), randn(4, 33, seed=2)
    x.requires_grad_()
    w.requires_grad_()
    ours, theirs = {
        "rms_norm": (lambda: norm.rms_norm(x, w, 1e-6), lambda: F.rms_norm(x, (33,), w, 1e-6)),
        "softmax": (lambda: softmax.softmax(x, -1), lambda: torch.softmax(x, -1)),
        "log_softmax": (lambda: softmax.log_softmax(x, 0), lambda: torch.log_softmax(x, 0)),
    }[name]
    got = torch.autograd.grad(ours(), (x, w), g, allow_unused=True)
    want = torch.autograd.grad(theirs(), (x, w), g, allow_unused=True)
    for p, q in zip(got, want, strict=True):
        if q is not None:
            torch.testing.assert_close(p, q)
    if name != "log_softmax":
        alone = torch.autograd.grad(ours(), x, g)[0]
        assert torch.equal(alone, got[0])
