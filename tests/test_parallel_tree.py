"""The order of additions: equal for 1, 2, 4 and 8 ranks in every bit, and not for a wrong order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nondet.invariant.bits import same_bits
from nondet.parallel.tree import column_product, leaf_count, leaf_products, tree_sum

K, N, ROWS = 384, 96, 11


def operands(dtype: torch.dtype, k: int = K, n: int = N) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    spread = torch.ldexp(torch.ones(k), torch.randint(-6, 7, (k,), generator=draw))
    x = torch.randn(ROWS, k, generator=draw) * spread
    return x.to(dtype), torch.randn(n, k, generator=draw).to(dtype)


def by_ranks(x: Tensor, weight: Tensor, ranks: int) -> Tensor:
    """What ``ranks`` ranks would compute and gather, one after the other."""
    leaves, part = leaf_count(x.shape[1]) // ranks, x.shape[1] // ranks
    own = []
    for rank in range(ranks):
        mine = slice(rank * part, (rank + 1) * part)
        own.append(tree_sum(leaf_products(x[:, mine], weight[:, mine].clone(), leaves)))
    return tree_sum(torch.stack(own))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("k", [384, 1024, 100])
def test_ranks_add_as_one_does(dtype: torch.dtype, k: int) -> None:
    x, weight = operands(dtype, k)
    wanted = by_ranks(x, weight, 1)
    assert wanted.dtype == torch.float32
    exact = x.double() @ weight.double().t()
    scale = x.double().abs() @ weight.double().abs().t()
    assert float(((wanted - exact).abs() / scale).max()) < 16 * torch.finfo(torch.float32).eps
    for ranks in (2, 4, 8):
        if leaf_count(k) % ranks == 0:
            assert same_bits(by_ranks(x, weight, ranks), wanted), ranks
    # The same leaves added from left to right, and the plain product, are other numbers.
    parts = leaf_products(x, weight, leaf_count(k))
    in_order = parts[0]
    for part in parts[1:]:
        in_order = in_order + part
    assert not same_bits(in_order, wanted)
    assert not same_bits(by_ranks(x.flip(1), weight.flip(1), 1), wanted)


def test_one_rank_that_adds_in_another_order_is_seen() -> None:
    x, weight = operands(torch.bfloat16)
    wanted, half = by_ranks(x, weight, 2), K // 2
    own = [leaf_products(x[:, i : i + half], weight[:, i : i + half], 4) for i in (0, half)]
    assert same_bits(tree_sum(torch.stack([tree_sum(part) for part in own])), wanted)
    own[1] = own[1][[0, 2, 1, 3]]
    assert not same_bits(tree_sum(torch.stack([tree_sum(part) for part in own])), wanted)


def test_one_leaf_a_rank_depends_on_the_ranks() -> None:
    """kernels=invariant: FP32 sums of every rank, added in their order."""
    x, weight = operands(torch.bfloat16)
    found = []
    for ranks in (1, 4, 8):
        part = K // ranks
        own = [
            leaf_products(x[:, i : i + part], weight[:, i : i + part], 1)[0]
            for i in range(0, K, part)
        ]
        found.append(tree_sum(torch.stack(own)))
    assert not same_bits(found[0], found[1])
    assert not same_bits(found[1], found[2])


def test_rows_depend_on_nothing_but_themselves() -> None:
    x, weight = operands(torch.bfloat16)
    wanted = by_ranks(x, weight, 2)
    for row in range(ROWS):
        assert same_bits(by_ranks(x[row : row + 1], weight, 2), wanted[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_a_column_does_not_depend_on_the_number_of_columns(
    dtype: torch.dtype, biased: bool
) -> None:
    x, weight = operands(dtype, n=192)
    bias = torch.linspace(-3, 3, 192).to(dtype) if biased else None
    wanted = column_product(x, weight, bias, 192)
    reference = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(wanted.double(), reference, rtol=2e-2, atol=2e-2 * 40)
    for ranks in (2, 4, 8):
        part = 192 // ranks
        found = [
            column_product(
                x, weight[i : i + part].clone(), None if bias is None else bias[i : i + part], 192
            )
            for i in range(0, 192, part)
        ]
        assert same_bits(torch.cat(found, 1), wanted), ranks


def test_leaves_divide_k() -> None:
    assert [leaf_count(k) for k in (8960, 1536, 12, 2, 9, 1)] == [8, 8, 4, 2, 1, 1]


@pytest.mark.parametrize("count", range(1, 10))
def test_a_tree_adds_every_part_once(count: int) -> None:
    parts = torch.ldexp(torch.ones(count, 1), torch.arange(count)[:, None])
    assert tree_sum(parts).item() == 2**count - 1


def test_the_order_of_the_tree() -> None:
    # 1 is lost beside 2^24 unless it meets its neighbour 1 first.
    big = 2.0**24
    assert tree_sum(torch.tensor([[big], [0.0], [1.0], [1.0]])).item() == big + 2
    assert tree_sum(torch.tensor([[big], [1.0], [1.0], [0.0]])).item() == big


def test_signed_zero_nan_and_infinity() -> None:
    zeros = torch.full((4, 1), -0.0)
    assert math.copysign(1, tree_sum(zeros).item()) == -1
    zeros[2] = 0.0
    assert math.copysign(1, tree_sum(zeros).item()) == 1
    for value in (math.nan, math.inf):
        x, weight = operands(torch.bfloat16)
        x[3, 200] = value
        wanted = by_ranks(x, weight, 1)
        for ranks in (2, 4, 8):
            found = by_ranks(x, weight, ranks)
            assert torch.equal(found.isnan(), wanted.isnan())
            assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
        assert not wanted[3].isfinite().any()
        assert wanted[[0, 1, 2, 4]].isfinite().all()  # no other row
