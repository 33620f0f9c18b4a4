"""CPU reductions and functions of one element: bits a row at a time, torch's semantics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from nondet.invariant import invariant
from nondet.invariant.bits import same_bits
from nondet.invariant.cpu_pointwise import NAMES, STEP, padded_length

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
WIDTHS = (1, 2, 3, 7, 31, 255, 256, 257, 576, 1000)
ROW_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
}


@pytest.fixture(autouse=True)
def switch() -> Iterator[invariant]:
    with invariant(device="cpu") as on:
        yield on


def data(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    x = torch.ldexp(torch.randn(shape, generator=draw),
                    torch.randint(-3, 4, shape, generator=draw))  # fmt: skip
    return x.to(dtype)


@pytest.mark.parametrize("name", ROW_OPS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_keep_their_bits(name: str, dtype: torch.dtype) -> None:
    op = ROW_OPS[name]
    cases = 0
    for width in WIDTHS:
        x = data(67, width, dtype=dtype, seed=width)
        wanted = torch.cat([op(row[None].clone()) for row in x])
        for rows in (1, 2, 3, 5, 8, 16, 33, 64, 67):
            part = slice(67 - rows, 67)
            assert same_bits(op(x[part]), wanted[part]), (width, rows)
            assert same_bits(op(x[part].t().contiguous().t()), wanted[part])
            wide = torch.zeros(rows, width + 3, dtype=dtype)
            wide[:, 2 : 2 + width] = x[part]
            assert same_bits(op(wide[:, 2 : 2 + width]), wanted[part])
            cases += 3 * rows
        poisoned = x.clone()
        poisoned[::2] = math.nan
        assert same_bits(op(poisoned)[1::2], wanted[1::2])
    assert cases > 2000


@pytest.mark.parametrize("name", ROW_OPS)
def test_long_rows_are_not_split_over_threads(name: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = data(3, 40_000)
        op = ROW_OPS[name]
        wanted = op(x)
        for row in range(3):
            assert same_bits(op(x[row : row + 1].clone())[0], wanted[row])
            assert same_bits(op(x[row].clone()), wanted[row])
    finally:
        torch.set_num_threads(before)


def test_mean_and_sum_over_every_choice_of_dimensions() -> None:
    x = data(3, 4, 5, dtype=torch.float32)
    for count in range(4):
        for dims in itertools.combinations(range(3), count):
            for signed in (dims, tuple(d - 3 for d in dims)):
                for keep in (False, True):
                    wanted = x.double().mean(signed, keepdim=keep)
                    got = x.mean(signed, keepdim=keep)
                    assert got.shape == wanted.shape
                    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)
                    total = x.sum(signed, keepdim=keep)
                    torch.testing.assert_close(
                        total.double(), x.double().sum(signed, keepdim=keep), rtol=1e-6, atol=1e-5
                    )


def test_mean_over_all_is_a_mean() -> None:
    # K01: an override once returned the sum here.
    x = torch.arange(12.0).view(3, 4)
    for got in (x.mean(), x.mean(dim=None), x.mean([]), x.mean((0, 1)), torch.mean(x)):
        assert float(got) == 5.5
        assert got.dtype == torch.float32
    assert x.to(torch.bfloat16).mean((0, 1)).dtype == torch.bfloat16
    assert x.to(torch.bfloat16).mean((0, 1), dtype=torch.float32).dtype == torch.float32


def test_types_as_in_torch() -> None:
    # K12: float64 keeps its accuracy, whole numbers keep torch's error.
    third = torch.full((1000,), 1 / 3, dtype=torch.float64)
    assert abs(float(third.view(10, 100).mean(-1)[0]) - 1 / 3) < 1e-15
    whole = torch.arange(6).view(2, 3)
    with pytest.raises(RuntimeError, match="floating point or complex"):
        whole.mean(-1)
    assert torch.equal(whole.sum(-1), torch.tensor([3, 12]))
    assert whole.sum(-1).dtype == torch.int64
    assert torch.equal(whole.mean(-1, dtype=torch.float32), torch.tensor([1.0, 4.0]))
    assert torch.equal(torch.ones(2, 3, dtype=torch.bool).sum(0), torch.tensor([2, 2, 2]))
    for dim in (2, -3):
        with pytest.raises(IndexError, match="Dimension out of range"):
            data(2, 3).sum(dim)
    with pytest.raises(RuntimeError, match="appears multiple times"):
        data(2, 3).sum((0, 0))


def test_empty_dimensions() -> None:
    # K25: NaN for the mean, 0 for the sum, shapes as in torch.
    x = torch.empty(2, 0, 3)
    assert torch.equal(x.sum(1), torch.zeros(2, 3))
    assert bool(x.mean(1).isnan().all())
    assert x.mean(1).shape == (2, 3)
    assert x.mean(0).shape == (0, 3)
    assert bool(x.mean().isnan())
    assert float(x.sum()) == 0
    assert x.softmax(1).shape == x.shape
    assert x.log_softmax(0).shape == x.shape


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("asked", [None, *FLOATS], ids=str)
def test_softmax_types(name: str, dtype: torch.dtype, asked: torch.dtype | None) -> None:
    # K09: dtype= of a half input gives a result of that type, as accurate as the type allows.
    x = data(6, 40, dtype=dtype)
    got = getattr(torch, name)(x, -1, dtype=asked)
    assert got.dtype == (asked or dtype)
    start = x if asked is None else x.to(asked)
    wanted = getattr(torch, name)(start.double(), -1)
    small = 4 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), wanted, rtol=small, atol=small)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_softmax_over_any_dimension(dim: int) -> None:
    x = data(5, 6, 7)
    moved = x.movedim(dim, -1)
    for op in (torch.softmax, torch.log_softmax):
        got = op(x, dim)
        assert got.is_contiguous()
        assert same_bits(got.movedim(dim, -1).contiguous(), op(moved.contiguous(), -1))
        out = torch.empty(0)
        name = "softmax" if op is torch.softmax else "log_softmax"
        getattr(torch, name)(x, dim, out=out)
        assert same_bits(out, got)


@pytest.mark.parametrize("name", ["sum", "mean"])
def test_no_less_accurate_than_torch(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = data(64, 2048, dtype=dtype)
        for layout in (x, x.t().contiguous().t()):
            exact = getattr(x.double(), name)(-1)
            ours = (getattr(layout, name)(-1).double() - exact).abs()
            from nondet.invariant import default_kernels

            with default_kernels():
                theirs = (getattr(layout, name)(-1).double() - exact).abs()
            # torch's sum over a strided dimension is in another order: both errors are rounding
            # noise there, so the comparison is on the layout both reduce alike.
            if layout.is_contiguous():
                assert float(ours.max()) <= 1.1 * float(theirs.max())
                assert float(ours.mean()) <= 1.1 * float(theirs.mean())
            else:
                assert float(ours.max()) <= 4 * torch.finfo(dtype).eps * float(exact.abs().max())


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "elu": torch.nn.functional.elu,
    "mish": torch.nn.functional.mish,
    "exp2": torch.exp2,
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "pow": lambda x: x.abs().pow(1.5),
    "square": lambda x: x.pow(2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_functions_of_one_element(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    x = data(2300, dtype=dtype)
    wanted = function(x)
    pieces = torch.cat([function(x[i : i + 23].clone()) for i in range(0, 2300, 23)])
    assert same_bits(pieces, wanted)
    ones = torch.cat([function(x[i : i + 1].clone()) for i in range(0, 200)])
    assert same_bits(ones, wanted[:200])
    square = x.view(46, 50)
    assert same_bits(function(square.t()).t().contiguous().view(-1), wanted)
    assert function(square).shape == (46, 50)


def test_torchs_own_silu_is_the_mutation_that_is_caught(switch: invariant) -> None:
    from nondet.invariant import default_kernels

    x = data(4096)
    with default_kernels():
        whole = torch.nn.functional.silu(x)
        ones = torch.cat([torch.nn.functional.silu(x[i : i + 1].clone()) for i in range(4096)])
    if same_bits(whole, ones):
        pytest.skip("scalar and vector silu agree on this processor")
    assert same_bits(torch.nn.functional.silu(x[5:6].clone()), torch.nn.functional.silu(x)[5:6])


def test_shares_of_threads_are_whole_vectors() -> None:
    for threads in (1, 2, 3, 5, 16):
        for count in (1, 63, 64, 65, 32768, 32769, 100_001, 1_000_003):
            length = padded_length(count, threads)
            assert count <= length < count + STEP * 2 * threads + STEP
            used = min(threads, math.ceil(length / 32768)) if length > 32768 else 1
            assert math.ceil(length / used) % STEP == 0
    assert "silu" in NAMES


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_and_argmax_hold_without_an_override(dtype: torch.dtype) -> None:
    # No CPU kernel stands behind these two groups: torch's own row loops have to hold.
    for width in (1, 3, 31, 64, 100, 577, 40_000):
        x = data(9, width, dtype=dtype, seed=width)
        weight, bias = data(width, dtype=dtype, seed=1), data(width, dtype=dtype, seed=2)
        for op in (
            lambda row, s=width, w=weight, b=bias: torch.nn.functional.layer_norm(row, (s,), w, b),
            lambda row, s=width, w=weight: torch.nn.functional.rms_norm(row, (s,), w),
        ):
            whole = op(x)
            for row in range(9):
                assert same_bits(op(x[row : row + 1].clone()), whole[row : row + 1]), width
        tied = torch.zeros(4, width + 2, dtype=dtype)
        tied[:, width // 2] = tied[:, width + 1] = 1
        assert tied.argmax(-1).tolist() == [width // 2] * 4
        assert int(tied[0].argmax()) == width // 2
