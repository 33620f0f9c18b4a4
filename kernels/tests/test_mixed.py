"""The product of FP32 by 16-bit numbers, through Triton's interpreter."""

from __future__ import annotations

import math

import mixed_table
import pytest
import torch
from nondet_kernels import mixed
from nondet_kernels.mixed import MixedPlan, mixed_linear, mixed_reference, mixed_slices

HALVES = [torch.bfloat16, torch.float16]
PLANS = [
    MixedPlan(16, 32, 4, 3, True),
    MixedPlan(16, 16, 4, 3, False),
    MixedPlan(64, 32, 4, 3, False, 2),
    MixedPlan(32, 64, 4, 3, True, 2),
]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(y: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the error against float64."""
    return float((y.double() - exact).square().mean().sqrt())


@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("how", PLANS, ids=str)
def test_as_accurate_as_full_fp32(how: MixedPlan, kind: torch.dtype) -> None:
    x, w, c = draw(17, 600), draw(40, 600, seed=1).to(kind), draw(40, seed=2).to(kind)
    exact = x.double() @ w.double().t() + c.double()
    ours = error(mixed_linear(x, w, c, how=how), exact)
    assert ours <= 1.1 * error(torch.nn.functional.linear(x, w.float(), c.float()), exact)
    # What it is not: the mutation rounds x to 16 bits, as a 16-bit product would.
    narrow = mixed_linear(x.to(kind).float(), w, c, how=how)
    assert error(narrow, exact) > 50 * ours


@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("how", [*PLANS, None], ids=str)
def test_the_order_of_a_sum_is_that_of_its_slices_and_blocks(
    how: MixedPlan | None, kind: torch.dtype
) -> None:
    # One large number and ones around it: which ones survive tells the order.
    x, w = torch.zeros(3, 512), torch.ones(5, 512, dtype=kind)
    x[:, 0], x[:, 64:128], x[:, 256] = 2.0**24, 1 / 64, 1.0
    assert mixed_slices(5, 512) == (2, 256)
    # The block 64..127 makes 1, lost against 2**24 at a tie; so is the second slice's.
    assert (mixed_linear(x, w, how=how) == 2.0**24).all()
    x[:, 64:128] = 1 / 32
    # Block by block 2, then the second slice's 1 at a tie to even; one by one, all would be lost.
    assert (mixed_linear(x, w, how=how) == 2.0**24 + 4).all()


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (2, 17, 31), (17, 64, 129), (33, 5, 640)])
@pytest.mark.parametrize("kind", HALVES, ids=str)
def test_shapes(m: int, n: int, k: int, kind: torch.dtype) -> None:
    x, w = draw(m, k).mul(4).round(), draw(n, k, seed=1).mul(4).round().to(kind)
    assert torch.equal(mixed_linear(x, w), mixed_reference(x, w))
    assert torch.equal(mixed_linear(x[None, None], w)[0, 0], mixed_reference(x, w))
    assert torch.equal(mixed_linear(x.t().contiguous().t(), w), mixed_reference(x, w))


def test_every_bit_of_x_counts() -> None:
    x = torch.tensor([[1 + 2.0**-23, -(2.0**40) * (1 + 2.0**-23), 2.0**-100 * (1 + 2.0**-23)]])
    for kind in HALVES:
        assert torch.equal(mixed_linear(x.t(), torch.ones(1, 1, dtype=kind)), x.t())
    largest = torch.tensor([[torch.finfo(torch.float32).max]])
    assert torch.equal(mixed_linear(largest, torch.ones(1, 1, dtype=torch.bfloat16)), largest)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_infinite_and_missing_numbers_come_out_as_in_fp32() -> None:
    quiet, low_bit = math.nan, torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    x = draw(7, 64)
    x[0, 3], x[1, 5], x[2, 7], x[3, 9] = math.inf, -math.inf, quiet, float(low_bit)
    x[4, 1], x[4, 2], x[5, 0] = math.inf, -math.inf, math.inf
    w = draw(6, 64, seed=1).bfloat16()
    w[2, 0] = 0.0  # infinity times zero
    for kind in HALVES:
        want = torch.nn.functional.linear(x, w.to(kind).float())
        got = mixed_linear(x, w.to(kind))
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got[got.isinf()], want[want.isinf()])
        assert got[6].isfinite().all()


def test_a_row_alone_and_among_others() -> None:
    x, w = torch.zeros(17, 96), draw(40, 96, seed=1).bfloat16()
    x[:, 3] = draw(17)
    x[0, :] = 0.0
    x[0, 5] = 1.0
    full = mixed_linear(x, w)
    assert torch.equal(full[:1], mixed_linear(x[:1], w))
    x[1:] = math.nan
    assert torch.equal(mixed_linear(x, w)[0], full[0])


def test_slices_are_a_function_of_n_and_k() -> None:
    assert mixed_slices(1536, 8960)[0] > 1
    assert mixed_slices(151936, 1536) == (1, 1536)
    for n, k in [(1, 1), (256, 1536), (4096, 14336), (576, 1536)]:
        count, length = mixed_slices(n, k)
        assert (count - 1) * length < k <= count * length
        assert length % (2 * mixed.BLOCK_K) == 0


def test_what_does_not_fit_is_refused() -> None:
    x, w = draw(2, 8), draw(3, 8).bfloat16()
    for wrong in ((x[:, :4], w, None), (x, w, draw(2)), (x, w[0], None)):
        with pytest.raises(ValueError, match="mixed_linear"):
            mixed_linear(*wrong)
    for wrong in ((x.bfloat16(), w), (x, w.float())):
        with pytest.raises(TypeError, match="mixed_linear"):
            mixed_linear(*wrong)


def test_empty_sizes() -> None:
    kind = torch.bfloat16
    assert mixed_linear(torch.empty(0, 5, 4), torch.empty(3, 4, dtype=kind)).shape == (0, 5, 3)
    c = draw(3)
    got = mixed_linear(torch.empty(2, 0), torch.empty(3, 0, dtype=kind), c)
    assert torch.equal(got, c.expand(2, 3))


def test_the_table_takes_the_fastest_plan_of_each_layer() -> None:
    head = {"bm": "16", "bn": "64", "warps": "4", "stages": "3", "swap": "True"}
    rows = [
        {"n": "8", "k": "16", "m": m, **head, "unroll": unroll, "us": us}
        for m, unroll, us in [
            ("1", "1", "5.0"),
            ("1", "2", "4.0"),
            ("64", "1", "9"),
            ("64", "2", ""),
        ]
    ]
    found = mixed_table.choose(rows)
    assert found == {"8,16": [[1, 16, 64, 4, 3, True, 2], [1 << 30, 16, 64, 4, 3, True, 1]]}
    for layer in mixed.table().values():
        most = [most for most, _ in layer]
        assert most == sorted(most)
        assert most[-1] == 1 << 30


def test_a_model_computes_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from nondet.precision import layercast

    model = torch.nn.Sequential(
        torch.nn.Embedding(11, 16), torch.nn.Linear(16, 24), torch.nn.Linear(24, 5, bias=False)
    ).to(torch.bfloat16)
    ids = torch.tensor([[1, 7, 10], [0, 3, 3]])
    with torch.inference_mode():
        want = model.double()(ids)
        model.to(torch.bfloat16)
        monkeypatch.setattr(layercast, "choose_product", lambda *_: "fused")
        cast = layercast.LayerCast(model)
        got = model(ids)
    assert cast.product == "fused"
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
