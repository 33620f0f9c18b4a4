"""The Triton side of nondet.parallel.tree, in the interpreter: parts as the whole has them.

In float16: the interpreter has no products of bfloat16.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nondet.invariant.bits import same_bits
from nondet.parallel.tree import columns_by_triton, leaves_by_triton, tree_sum


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_ranks_add_as_one_does(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 512, generator=draw).to(dtype)
    weight = torch.randn(32, 512, generator=draw).to(dtype)
    wanted = tree_sum(leaves_by_triton(x, weight, 8))
    assert wanted.dtype == torch.float32
    torch.testing.assert_close(wanted.double(), x.double() @ weight.double().t(), rtol=1e-4,
                               atol=1e-3)  # fmt: skip
    for ranks in (2, 4):
        part = 512 // ranks
        own = [
            tree_sum(leaves_by_triton(x[:, i : i + part], weight[:, i : i + part].clone(),
                                      8 // ranks))
            for i in range(0, 512, part)
        ]  # fmt: skip
        assert same_bits(tree_sum(torch.stack(own)), wanted), ranks


@pytest.mark.parametrize("leaves", [1, 4])
def test_leaves_take_plans_that_fit_fp32_results(
    leaves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuned plans fill the shared memory with tiles of 16-bit results."""
    from nondet_kernels import matmul

    plans: list[Any] = []
    launch = matmul.launch

    def spied(*args: Any) -> Any:
        plans.append(args[-1])
        return launch(*args)

    monkeypatch.setattr(matmul, "launch", spied)
    x, weight = torch.ones(2, 256).half(), torch.ones(32, 256).half()
    assert bool((tree_sum(leaves_by_triton(x, weight, leaves)) == 256).all())
    assert [plan.kernel for plan in plans] == ["tile"]


@pytest.mark.parametrize("biased", [False, True])
def test_columns_keep_the_slices_of_the_whole_layer(biased: bool) -> None:
    # 4096 columns of a sum over 8192 are one slice; 2048 of them alone would be two.
    from nondet_kernels.matmul_plan import slices

    assert slices(4096, 8192) != slices(16, 8192)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 8192, generator=draw).to(torch.float16)
    weight = torch.randn(16, 8192, generator=draw).to(torch.float16)
    bias = torch.randn(16, generator=draw).to(torch.float16) if biased else None
    whole = columns_by_triton(x, weight, bias, 4096)
    alone = columns_by_triton(x, weight, bias, 16)
    parts = [
        columns_by_triton(x, weight[i : i + 8].clone(), None if bias is None else bias[i : i + 8],
                          4096)
        for i in (0, 8)
    ]  # fmt: skip
    assert same_bits(torch.cat(parts, 1), whole)
    torch.testing.assert_close(alone.float(), whole.float(), rtol=2e-2, atol=1.0)
