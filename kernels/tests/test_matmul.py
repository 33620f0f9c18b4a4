"""matmul, bmm and linear through Triton's interpreter: torch semantics and the order of sums.

The interpreter multiplies blocks with NumPy, whose bits depend on the block's shape; so data here
is small integers, exact in any order, except where one element a slice makes the order visible.
"""

from __future__ import annotations

import math

import pytest
import torch
from nondet_kernels import matmul as mm
from nondet_kernels import matmul_launch as ml
from nondet_kernels.matmul_plan import Plan

PLANS = [
    Plan("tile", "parallel", 16, 32, 32, 4, 3, swap=True),
    Plan("tile", "parallel", 32, 16, 64, 4, 3),
    Plan("tile", "walk", 16, 16, 128, 4, 3),
    Plan("tile", "walk", 32, 32, 32, 4, 3, swap=True),
]
STREAM = [
    Plan("stream", "spill", 32, 32, 64, 4, 3),
    Plan("stream", "parallel", 32, 64, 64, 4, 3),
    Plan("stream", "parallel", 64, 32, 128, 4, 3, per_sm=2),
]


def ints(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=gen).to(dtype)


@pytest.mark.parametrize("how", PLANS + STREAM)
@pytest.mark.parametrize("count", [(3, 128), (2, 256)])
def test_every_plan_computes_the_product(how: Plan, count: tuple[int, int]) -> None:
    a, b = ints(37, 328), ints(48, 328, seed=1).t()
    y = mm.bmm(a[None], b[None], count=count, how=how)[0]
    assert torch.equal(y, mm.matmul_reference(a, b))


@pytest.mark.parametrize("how", PLANS)
def test_slices_are_added_in_ascending_order(how: Plan) -> None:
    a = torch.zeros(5, 384)
    a[:, 0], a[:, 128], a[:, 256] = 1.0, 1.0, 2.0**24
    b = torch.ones(384, 16)
    rising = mm.bmm(a[None], b[None], count=(3, 128), how=how)[0]
    assert (rising == 2.0**24 + 2).all()
    # The mutation: the same numbers in another order of slices. It must show.
    falling = mm.bmm(a.flip(1)[None], b[None], count=(3, 128), how=how)[0]
    assert (falling == 2.0**24).all()


def test_wrong_number_of_slices_shows() -> None:
    a = torch.zeros(1, 512)
    a[:, 0], a[:, 256], a[:, 384] = 2.0**24, 1.0, 1.0
    b = torch.ones(512, 16)
    how = PLANS[2]
    one = mm.bmm(a[None], b[None], count=(4, 128), how=how)[0]
    two = mm.bmm(a[None], b[None], count=(2, 256), how=how)[0]
    assert one[0, 0] == 2.0**24
    assert two[0, 0] == 2.0**24 + 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (2, 17, 31), (17, 64, 129), (33, 5, 256)])
def test_shapes_and_types(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    a, b, c = (ints(*s, dtype=dtype, seed=i) for i, s in enumerate([(m, k), (k, n), (n,)]))
    assert torch.equal(mm.matmul(a, b), mm.matmul_reference(a, b))
    assert torch.equal(mm.linear(a, b.t(), c), mm.matmul_reference(a, b, c))


@pytest.mark.parametrize("m", [2, 17])
def test_a_row_alone_and_in_a_batch(m: int) -> None:
    gen = torch.Generator().manual_seed(m)
    a, w = torch.randn(m, 96, generator=gen), torch.randn(40, 96, generator=gen)
    a[0], w[0] = 0.0, torch.arange(96)
    a[0, 3] = 1.0
    full = mm.linear(a, w)
    assert torch.equal(full[:1], mm.linear(a[:1], w))
    poisoned = a.clone()
    poisoned[1:] = math.nan
    assert torch.equal(mm.linear(poisoned, w)[0], full[0])


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0), (-2.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("kind", ["scalar", "row", "column", "full", "strided"])
def test_alpha_beta_and_every_bias_shape(alpha: float, beta: float, kind: str) -> None:
    a, b = ints(6, 20, dtype=torch.float32), ints(20, 10, dtype=torch.float32, seed=1)
    shape = {"scalar": (), "row": (10,), "column": (6, 1), "full": (6, 10), "strided": (10, 6)}[
        kind
    ]
    c = ints(*shape, dtype=torch.float32, seed=2)
    c = c.t() if kind == "strided" else c
    assert torch.equal(
        mm.matmul(a, b, c, alpha, beta), torch.addmm(c, a, b, alpha=alpha, beta=beta)
    )


def test_beta_zero_ignores_nan_in_the_bias() -> None:
    a, b = ints(3, 8, dtype=torch.float32), ints(8, 5, dtype=torch.float32, seed=1)
    c = torch.full((5,), math.nan)
    assert torch.equal(mm.matmul(a, b, c, beta=0.0), mm.matmul_reference(a, b))
    assert mm.matmul(a, b, c).isnan().all()


def test_empty_sizes() -> None:
    f = torch.float32
    assert mm.matmul(torch.empty(0, 4), torch.empty(4, 3)).shape == (0, 3)
    assert mm.matmul(torch.empty(2, 4), torch.empty(4, 0)).shape == (2, 0)
    assert torch.equal(mm.matmul(torch.empty(2, 0), torch.empty(0, 3)), torch.zeros(2, 3))
    c = torch.arange(3, dtype=f)
    assert torch.equal(
        mm.matmul(torch.empty(2, 0), torch.empty(0, 3), c, beta=2.0), 2 * c.expand(2, 3)
    )
    assert mm.linear(torch.empty(0, 5, 4), torch.empty(3, 4)).shape == (0, 5, 3)
    assert mm.bmm(torch.empty(0, 2, 4), torch.empty(0, 4, 3)).shape == (0, 2, 3)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "stepped", "expanded"])
def test_strides(layout: str) -> None:
    base = ints(40, 40, dtype=torch.float32)
    a = {
        "transposed": base.t(), "sliced": base[3:20, 1:34], "stepped": base[::2, ::3],
        "expanded": base[:1].expand(7, 40),
    }[layout]  # fmt: skip
    b = ints(60, 50, dtype=torch.float32, seed=1)[: a.shape[1], ::2]
    assert torch.equal(mm.matmul(a, b), mm.matmul_reference(a, b))


def test_out_forms() -> None:
    a, b = ints(5, 12, dtype=torch.float32), ints(12, 12, dtype=torch.float32, seed=1)
    want = mm.matmul_reference(a, b)
    out = torch.full((12, 5), 9.0).t()
    assert mm.matmul(a, b, out=out) is out
    assert torch.equal(out, want)
    # addmm_ in place, and an output that overwrites an operand.
    c = ints(5, 12, dtype=torch.float32, seed=2)
    want = mm.matmul_reference(a, b, c)
    mm.matmul(a, b, c, out=c)
    assert torch.equal(c, want)
    square = b.clone()
    mm.matmul(square, b, out=square)
    assert torch.equal(square, mm.matmul_reference(b, b))
    half = ints(4, 8)
    wide = mm.matmul(half, half.t(), out=torch.empty(4, 4))
    assert wide.dtype == torch.float32


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        mm.matmul(torch.empty(2, 3), torch.empty(4, 5))
    with pytest.raises(TypeError, match="dtypes differ"):
        mm.matmul(torch.empty(2, 3), torch.empty(3, 5).half())
    with pytest.raises(TypeError, match="not supported"):
        mm.matmul(torch.ones(2, 3, dtype=torch.int32), torch.ones(3, 5, dtype=torch.int32))
    with pytest.raises(ValueError, match="out has shape"):
        mm.matmul(torch.ones(2, 3), torch.ones(3, 5), out=torch.empty(2, 4))


def test_bmm_and_appended_zeros() -> None:
    a, b, c = ints(3, 5, 20), ints(3, 20, 9, seed=1), ints(3, 5, 9, seed=2)
    want = (a.double() @ b.double()).half()
    assert torch.equal(mm.bmm(a, b), want)
    assert torch.equal(mm.bmm(a, b, c), (want.double() + c).half())
    longer = torch.nn.functional.pad(a, (0, 50)), torch.nn.functional.pad(b, (0, 0, 0, 50))
    assert torch.equal(mm.bmm(*longer), want)


def test_linear_backward() -> None:
    x, w, c = (
        ints(*s, dtype=torch.float32, seed=i) for i, s in enumerate([(2, 3, 8), (5, 8), (5,)])
    )
    g = ints(2, 3, 5, dtype=torch.float32, seed=4)
    args = [t.clone().requires_grad_() for t in (x, w, c)]
    ours = torch.autograd.grad(mm.linear(*args), args, g)
    theirs = torch.autograd.grad(torch.nn.functional.linear(*args), args, g)
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_remembered_launches_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second product of a layout skips every check; it must compute the same function."""

    class Compiled:
        def __init__(self, kernel: object) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, int, int]) -> object:
            return self.kernel[grid]  # type: ignore[index]

    def start(kernel, grid, args, constants, options):  # type: ignore[no-untyped-def]
        kernel[grid](*args, **constants)
        return Compiled(kernel)

    monkeypatch.setattr(ml, "start", start)
    monkeypatch.setattr(mm, "_ready", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    a, w, c = ints(5, 64), ints(24, 64, seed=1), ints(24, seed=2)
    first = mm.linear(a, w, c), mm.matmul(a, w.t(), c, 0.5, 2.0)
    assert len(mm._ready) == 2
    other = ints(5, 64, seed=7)
    assert torch.equal(mm.linear(other, w, c), mm.matmul_reference(other, w.t(), c))
    assert torch.equal(
        mm.matmul(other, w.t(), c, 0.5, 2.0), mm.matmul_reference(other, w.t(), c, 0.5, 2.0)
    )
    assert torch.equal(mm.linear(a, w, c), first[0])
    assert len(mm._ready) == 2


@pytest.mark.parametrize("kernel", ["tile", "stream"])
def test_a_plan_that_does_not_fit_gives_way(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuned plan may need more shared memory than there is, with FP32 results for example."""
    tried: list[Plan] = []
    tile = ml._tile

    def refuse(*args: object) -> object:
        tried.append(next(x for x in args if isinstance(x, Plan)))
        raise ml.OutOfResources(278552, 232448, "shared memory")

    def small(*args: object) -> object:
        how = next(x for x in args if isinstance(x, Plan))
        return refuse(*args) if how.stages > 1 else tile(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ml, "_stream", refuse)
    monkeypatch.setattr(ml, "_tile", small)
    monkeypatch.setattr(ml, "_fits", {})
    how = Plan(kernel, "whole", 32, 32, 64, 4, 3)
    a, b = ints(5, 64), ints(24, 64, seed=1).t()
    out = torch.empty(1, 5, 24)
    for _ in range(2):
        mm.bmm(a[None], b[None], out=out, count=(1, 64), how=how)
        assert torch.equal(out[0], a.float() @ b.float())
    assert [plan.stages for plan in tried[:2]] == [3, 2]
    assert len(ml._fits) == 1
    assert next(iter(ml._fits.values())).stages == 1
    assert tried[0] == how
    assert tried.count(how) == 1  # the second call knew
    monkeypatch.setattr(ml, "_tile", refuse)
    monkeypatch.setattr(ml, "_fits", {})
    with pytest.raises(RuntimeError, match="fits"):
        mm.bmm(a[None], b[None], out=out, count=(1, 64), how=how)
