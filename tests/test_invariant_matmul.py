"""CPU matrix products: a row's bits depend on the row alone, with torch's semantics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nondet.invariant import blocks, invariant
from nondet.invariant.bits import differing, same_bits
from nondet.invariant.blocks import BASE, Shape, cancelling, product, proven_sizes, schedule

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
KINDS = ("normal", "wide", "cancelling")
SIZES = ((1, 1), (2, 3), (7, 13), (64, 64), (1, 257), (255, 31), (257, 255), (96, 300))


@pytest.fixture
def switch() -> Iterator[invariant]:
    with invariant(ops=("matmul",), device="cpu") as on:
        yield on


def drawn(
    kind: str, rows: int, n: int, k: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """(rows, K) and weights (N, K) of one kind of data."""
    if kind == "cancelling":
        x, weights = cancelling(rows, Shape(n, k, dtype, "rows", False, 1))
        return x, weights
    draw = torch.Generator().manual_seed(seed)
    x, weights = torch.randn(rows, k, generator=draw), torch.randn(n, k, generator=draw)
    if kind == "wide":
        x = torch.ldexp(x, torch.randint(-8, 9, x.shape, generator=draw))
        weights = torch.ldexp(weights, torch.randint(-4, 5, weights.shape, generator=draw))
    return x.to(dtype), weights.to(dtype)


def alone(x: Tensor, weights: Tensor) -> Tensor:
    return torch.cat([torch.mm(row[None].clone(), weights.t()) for row in x])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_row_has_the_bits_it_has_alone(switch: invariant, dtype: torch.dtype) -> None:
    cases = 0
    for n, k in SIZES:
        for kind in KINDS:
            x, weights = drawn(kind, 300, n, k, dtype)
            wanted = alone(x, weights)
            for rows in (*range(2, 20), 31, 33, 63, 64, 65, 100, 255, 256, 257, 300):
                start = (rows * 7) % (301 - rows)
                part = slice(start, start + rows)
                assert same_bits(torch.mm(x[part], weights.t()), wanted[part]), (n, k, kind, rows)
                cases += rows
    assert cases > 2000


@pytest.mark.parametrize("threads", [2, 3])
def test_several_threads(switch: invariant, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype in (torch.bfloat16, torch.float32):
            for n, k in ((576, 1536), (192, 576)):
                x, weights = drawn("cancelling", 70, n, k, dtype)
                wanted = alone(x, weights)
                for rows in (2, 4, 16, 33, 64, 70):
                    assert same_bits(torch.mm(x[:rows], weights.t()), wanted[:rows]), (n, k, rows)
    finally:
        torch.set_num_threads(before)


def test_neighbours_of_any_value_change_nothing(switch: invariant) -> None:
    for dtype in DTYPES:
        x, weights = drawn("normal", 9, 48, 80, dtype)
        wanted = torch.mm(x[4:5].clone(), weights.t())
        for value in (math.nan, math.inf, -math.inf, torch.finfo(dtype).max, 0.0):
            poisoned = x.clone()
            poisoned[[0, 3, 5, 8]] = value
            assert same_bits(torch.mm(poisoned, weights.t())[4:5], wanted), (dtype, value)


def test_strides_change_nothing(switch: invariant) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        x, weights = drawn("cancelling", 37, 64, 96, dtype)
        wanted = torch.mm(x, weights.t())
        wide = torch.zeros(37, 3 * 96 + 1, dtype=dtype)
        wide[:, 5 : 5 + 96] = x
        for layout in (wide[:, 5 : 5 + 96], x.t().contiguous().t(), x.repeat_interleave(2, 0)[::2]):
            assert same_bits(torch.mm(layout, weights.t()), wanted)
        flipped = torch.mm(x.flip(0), weights.t()).flip(0)
        assert same_bits(flipped, wanted)
        # Weights that are a slice: not the same bits, but the same for every M.
        sliced = torch.zeros(64, 200, dtype=dtype)
        sliced[:, 3:99] = weights
        many = torch.mm(x, sliced[:, 3:99].t())
        assert same_bits(many, alone(x, sliced[:, 3:99]))


def test_batched_products_follow_the_single_ones(switch: invariant) -> None:
    a, b = torch.randn(5, 19, 33), torch.randn(5, 33, 24)
    for dtype in (torch.float32, torch.bfloat16):
        x, y = a.to(dtype), b.to(dtype)
        wanted = torch.stack([torch.mm(p, q) for p, q in zip(x, y, strict=True)])
        assert same_bits(torch.bmm(x, y), wanted)
        assert same_bits(torch.matmul(x, y), wanted)
        assert same_bits(torch.bmm(x[1:2, 3:4], y[1:2]), wanted[1:2, 3:4])
        bias = torch.randn(5, 19, 24).to(dtype)
        added = torch.stack([torch.addmm(c, p, q, beta=0.5, alpha=2.0)
                             for c, p, q in zip(bias, x, y, strict=True)])  # fmt: skip
        assert same_bits(torch.baddbmm(bias, x, y, beta=0.5, alpha=2.0), added)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(24,), (1, 24), (17, 1), (17, 24), (), (1,)], ids=str)
def test_bias_alpha_and_beta(switch: invariant, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weights = drawn("normal", 17, 24, 40, dtype)
    bias = torch.randn(shape).to(dtype)
    for beta, alpha in ((1, 1), (0.5, 1), (1, -2), (0, 1), (2, 0)):
        got = torch.addmm(bias, x, weights.t(), beta=beta, alpha=alpha)
        exact = beta * bias.double() + alpha * (x.double() @ weights.double().t())
        assert got.dtype == dtype
        size = float(exact.abs().max()) + 1
        assert float((got.double() - exact).abs().max()) <= 16 * torch.finfo(dtype).eps * size
        rows = [
            torch.addmm(bias.expand(17, 24)[i : i + 1], x[i : i + 1], weights.t(),
                        beta=beta, alpha=alpha)
            for i in range(17)
        ]  # fmt: skip
        assert same_bits(torch.cat(rows), got)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_with_a_bias_in_either_layout(
    switch: invariant, dtype: torch.dtype, threads: int
) -> None:
    """A library may add the bias before or after the products, by the number of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for n, k in ((64, 64), (1000, 33), (1, 64)):
            x, weights = drawn("wide", 40, n, k, dtype)
            bias = torch.randn(n).to(dtype)
            for turned in (weights.t(), weights.t().contiguous()):
                for beta, alpha in ((1, 1), (1, 0.3), (0.7, 0.3)):
                    whole = torch.addmm(bias, x, turned, beta=beta, alpha=alpha)
                    for rows in (1, 2, 3, 5, 8, 17, 33):
                        part = torch.addmm(bias, x[7 : 7 + rows], turned, beta=beta, alpha=alpha)
                        assert same_bits(part, whole[7 : 7 + rows]), (n, k, rows, beta, alpha)
    finally:
        torch.set_num_threads(before)


def test_beta_zero_does_not_read_the_bias(switch: invariant) -> None:
    x, weights = drawn("normal", 5, 8, 12, torch.float32)
    nan = torch.full((8,), math.nan)
    got = torch.addmm(nan, x, weights.t(), beta=0)
    assert bool(torch.isfinite(got).all())
    assert same_bits(got, torch.addmm(torch.zeros(8), x, weights.t(), beta=0))


def test_strided_bias_and_out_forms(switch: invariant) -> None:
    x, weights = drawn("normal", 6, 10, 14, torch.float32)
    bias = torch.randn(20)[::2]
    wanted = torch.addmm(bias.clone(), x, weights.t())
    assert same_bits(torch.addmm(bias, x, weights.t()), wanted)
    assert same_bits(torch.nn.functional.linear(x, weights, bias), wanted)
    out = torch.full((10, 6), math.nan).t()
    assert torch.addmm(bias, x, weights.t(), out=out) is out
    assert same_bits(out, wanted)
    plain = torch.mm(x, weights.t())
    for target in (torch.empty(6, 10), torch.empty(0), torch.empty(12, 20)[::2, ::2]):
        torch.mm(x, weights.t(), out=target)
        assert same_bits(target, plain)
    grown = bias.expand(6, 10).clone()
    assert same_bits(grown.addmm_(x, weights.t()), wanted)
    assert same_bits(torch.mv(x, weights[0]), torch.mm(x, weights[:1].t())[:, 0])
    summed = torch.addmv(bias[:6], x, weights[0])
    assert same_bits(summed[2:3], torch.addmv(bias[2:3], x[2:3], weights[0]))


@pytest.mark.parametrize(
    ("rows", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0), (1, 1, 1)]
)
def test_empty_products(switch: invariant, rows: int, n: int, k: int) -> None:
    got = torch.mm(torch.ones(rows, k), torch.ones(k, n))
    assert got.shape == (rows, n)
    assert bool((got == k).all())
    assert bool((torch.addmm(torch.ones(n), torch.ones(rows, k), torch.ones(k, n)) == k + 1).all())


def test_errors_stay_torchs_own(switch: invariant) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(torch.ones(2, 3), torch.ones(3, 2, dtype=torch.float64))
    whole = torch.arange(6).view(2, 3)
    assert torch.equal(torch.mm(whole, whole.t()), torch.tensor([[5, 14], [14, 50]]))


def test_fp32_is_ieee(switch: invariant) -> None:
    # K03: in TF32, whole numbers above 2048 would be rounded.
    place = torch.arange(8192.0)[None]
    assert torch.equal(torch.mm(torch.ones(1, 1), place), place)
    assert torch.equal(torch.bmm(torch.ones(1, 1, 1), place[None])[0], place)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_no_less_accurate_than_torch(dtype: torch.dtype) -> None:
    ours, theirs = [], []
    for n, k in ((64, 576), (192, 300), (96, 1536)):
        for kind in ("normal", "wide"):
            x, weights = drawn(kind, 48, n, k, dtype, seed=n)
            exact = x.double() @ weights.double().t()
            scale = (x.double().abs() @ weights.double().abs().t()) * torch.finfo(dtype).eps
            theirs.append(((torch.mm(x, weights.t()).double() - exact) / scale).abs())
            with invariant(ops=("matmul",), device="cpu"):
                ours.append(((torch.mm(x, weights.t()).double() - exact) / scale).abs())
    for measure in (torch.max, torch.mean):
        our = float(measure(torch.stack([measure(e) for e in ours])))
        their = float(measure(torch.stack([measure(e) for e in theirs])))
        assert our <= 1.1 * their


def test_schedule_covers_every_row_once() -> None:
    for sizes in ((16,), (2, 4, 8, 16), (16, 64, 256)):
        for rows in range(1, 600):
            plan = schedule(rows, sizes)
            ends = [start + size for start, size in plan]
            assert [start for start, _ in plan] == [0, *ends[:-1]]
            assert ends[-1] >= rows > plan[-1][0]
            assert all(size in sizes for _, size in plan)


def test_blocks_never_depend_on_the_number_of_rows() -> None:
    assert "rows" not in Shape._fields
    shape = Shape(40, 30, torch.float32, "rows", False, torch.get_num_threads())
    assert BASE in proven_sizes(shape)
    assert proven_sizes(shape) is proven_sizes(shape)


# Mutations: each fault put in on purpose must be caught by the comparison used above.


def caught(x: Tensor, weights: Tensor, faulty: object, rows: tuple[int, ...] = (1, 3, 40)) -> bool:
    assert callable(faulty)
    wanted = torch.cat([faulty(row[None].clone(), weights) for row in x])
    return any(not same_bits(faulty(x[:m], weights), wanted[:m]) for m in rows)


def test_mutation_changed_order_of_k() -> None:
    def split(x: Tensor, weights: Tensor) -> Tensor:
        if x.shape[0] < 8:
            return product(x, weights.t())
        cut = 100  # no boundary of a library's own blocks, where the two orders would be one
        return product(x[:, cut:], weights[:, cut:].t()) + product(x[:, :cut], weights[:, :cut].t())

    for dtype in (torch.bfloat16, torch.float32):
        x, weights = drawn("cancelling", 40, 32, 256, dtype)
        assert caught(x, weights, split)
        assert not caught(x, weights, lambda a, w: product(a, w.t()))


def test_mutation_block_size_follows_the_rows() -> None:
    # torch's own product is this mutation: M reaches the library. K21.
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for n, k in ((576, 1536), (576, 576), (1536, 576)):
            x, weights = drawn("cancelling", 64, n, k, dtype)
            torchs = caught(x, weights, lambda a, w: torch.mm(a, w.t()), (2, 4, 16, 40, 64))
            found.append(torchs)
    assert any(found)


def test_mutation_pad_that_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(weights: Tensor, rows: Tensor, size: int, *rest: object) -> Tensor:
        full = torch.zeros(size, rows.shape[1], dtype=rows.dtype)
        full[: len(rows)] = rows
        mixed = full + full.mean(0) * 1e-3  # a leak from every row of the block
        return (mixed @ weights.t())[: len(rows)]

    x, weights = drawn("normal", 40, 32, 64, torch.float32)
    monkeypatch.setattr(blocks, "_block", leaking)
    # The probe sees it as well, and goes row by row; with the probe out of the way it is caught.
    assert blocks._probe(Shape(32, 64, torch.float32, "rows", False, 1)) == ()
    monkeypatch.setattr(blocks, "proven_sizes", lambda shape: (16, 64))
    assert caught(x, weights, lambda a, w: product(a, w.t()))


def test_probe_rejects_a_size_with_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    real = blocks._block

    def other_order(weights: Tensor, rows: Tensor, size: int, *rest: object) -> Tensor:
        if size != 64:
            return real(weights, rows, size, *rest)  # type: ignore[arg-type]
        back = torch.arange(rows.shape[1] - 1, -1, -1)
        return real(weights[:, back], rows[:, back], size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(blocks, "_block", other_order)
    sizes = blocks._probe(Shape(48, 640, torch.float32, "rows", False, 1))
    assert 64 not in sizes
    assert BASE in sizes


def test_rows_go_one_by_one_where_their_place_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    real = blocks._block

    def by_place(weights: Tensor, rows: Tensor, size: int, *rest: object) -> Tensor:
        result = real(weights, rows, size, *rest)  # type: ignore[arg-type]
        return result + torch.arange(len(rows), dtype=result.dtype)[:, None]

    monkeypatch.setattr(blocks, "_block", by_place)
    monkeypatch.setattr(blocks, "_sizes", {})
    x, weights = drawn("normal", 40, 32, 64, torch.float32)
    assert blocks._probe(Shape(32, 64, torch.float32, "rows", False, 1)) == ()
    assert not caught(x, weights, lambda a, w: product(a, w.t()))


def test_counting_differing_bits() -> None:
    a = torch.tensor([0.0, 1.0, math.nan])
    assert differing(a, torch.tensor([-0.0, 1.0, math.nan])) == 1
    assert same_bits(a, a.clone())
    assert not same_bits(a, a.double())
