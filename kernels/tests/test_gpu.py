"""On a GPU: property cases, every plan, the four mutations, and the corners no interpreter shows.

The long form, thousands of cases, is kernels/bench/check_*.py; its results are under results/bench.
"""

from __future__ import annotations

import queue

import check_attention
import check_bits
import check_plans
import pytest
import torch
from nondet_kernels import attention as at
from nondet_kernels import matmul as mm
from nondet_kernels import norm, reduce, softmax
from nondet_kernels.matmul_plan import Plan
from operations import data, same

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", check_bits.OPS)
def test_property_cases(name: str) -> None:
    for seed in range(24):
        row = check_bits.case(name, seed)
        assert all(row[check] for check in check_bits.CHECKS), row


def test_attention_cases() -> None:
    for seed in range(12):
        row = check_attention.case(seed)
        assert all(row[check] for check in check_attention.CHECKS), row


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_no_plan_changes_a_bit(dtype: torch.dtype) -> None:
    found: queue.Queue[tuple[str, bool, int, int, int]] = queue.Queue()
    check_plans.compare(dtype, False, 2, found)
    *_, tried, bad = found.get()
    assert tried > 20
    assert bad == 0


def product(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    a, b = data((33, 4096), "wide", dtype), data((256, 4096), "wide", dtype).t()
    return a, b, mm.matmul(a, b, out=torch.empty((33, 256), device="cuda"))


def test_mutation_wrong_split_shows() -> None:
    a, b, want = product(torch.bfloat16)
    how = Plan("tile", "parallel", 16, 64, 128, 4, 3, swap=True)
    out = torch.empty((1, 33, 256), device="cuda")
    assert not same(mm.bmm(a[None], b[None], out=out, count=(4, 1024), how=how)[0], want)


def test_mutation_other_order_of_blocks_shows() -> None:
    a, b, want = product(torch.bfloat16)
    order = torch.arange(4096, device="cuda").view(-1, 64).flip(0).flatten()
    out = torch.empty((33, 256), device="cuda")
    assert not same(mm.matmul(a[:, order], b[order], out=out), want)


def test_mutation_tf32_shows_and_ieee_is_exact() -> None:
    a, b, want = product(torch.float32)
    assert not same(mm.matmul(a, b, allow_tf32=True), want)
    one, positions = torch.ones(1, 1, device="cuda"), torch.arange(8192.0, device="cuda")[None]
    assert torch.equal(mm.matmul(one, positions), positions)


def test_mutation_unmasked_pad_shows() -> None:
    q, k, v = (data((1, h, n, 64), "normal", torch.bfloat16) for h, n in ((4, 1), (2, 77), (2, 77)))
    right = at.attention(q, k, v, key_start=torch.tensor([5], device="cuda"))
    assert same(right, at.attention(q, k[:, :, 5:], v[:, :, 5:]))
    assert not same(right, at.attention(q, k, v))


def test_offsets_beyond_31_bits() -> None:
    big = torch.zeros(2**31 + 4096 * 64, dtype=torch.bfloat16, device="cuda")
    x = big[-64 * 4096 :].view(64, 4096).normal_()
    far = big.as_strided((2, 4096), (2**31, 1), 64 * 4096 - 4096)
    far[1].copy_(x[0])
    w = data((512, 4096), "normal", torch.bfloat16)
    assert same(mm.linear(far, w)[1], mm.linear(far[1:].clone(), w)[0])
    for function in (softmax.softmax, reduce.mean):
        assert same(function(far, 1)[1], function(far[1:].clone(), 1)[0])
    assert same(norm.rms_norm(far)[1], norm.rms_norm(far[1:].clone())[0])
    tall = big[: 2**31].view(-1, 2**15)
    assert same(softmax.softmax(tall, 1)[-1], softmax.softmax(tall[-1:].clone(), 1)[0])


def test_cuda_graph_gives_the_same_bits() -> None:
    x, w = data((7, 8960), "wide", torch.bfloat16), data((1536, 8960), "normal", torch.bfloat16)
    want = mm.linear(x, w)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        mm.linear(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = mm.linear(x, w)
    for _ in range(3):
        got.zero_()
        graph.replay()
        assert same(got, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_gpu_is_used_not_the_current_one() -> None:
    x, w = data((3, 256), "normal", torch.bfloat16), data((128, 256), "normal", torch.bfloat16)
    want = mm.linear(x, w)
    got = mm.linear(x.to("cuda:1"), w.to("cuda:1"))
    assert got.device.index == 1
    assert same(got.to("cuda:0"), want)
