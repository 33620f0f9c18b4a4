"""The GPU side of the switch without a GPU: its functions on CPU tensors, kernels interpreted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Read when a kernel file is imported, so before any of them is.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")
support = pytest.importorskip("nondet_kernels.support")
if not support.INTERPRETED:
    pytest.skip("a GPU is here: tests/test_invariant_gpu.py runs instead", allow_module_level=True)

from nondet.invariant import cuda  # noqa: E402
from nondet.invariant.bits import same_bits  # noqa: E402
from nondet.invariant.cpu_attention import attention as on_cpu  # noqa: E402
from nondet.precision.switches import set_switches  # noqa: E402

KERNELS = cuda._kernels()
A, B, BIAS = torch.randn(5, 20), torch.randn(20, 9), torch.randn(9)
MATMUL = cuda._matmul_group(KERNELS)
CALLS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mm": (lambda: MATMUL["mm"](A, B), lambda: torch.mm(A, B)),
    "addmm": (
        lambda: MATMUL["addmm"](BIAS, A, B, beta=0.5, alpha=2),
        lambda: torch.addmm(BIAS, A, B, beta=0.5, alpha=2),
    ),
    "bmm": (lambda: MATMUL["bmm"](A[None], B[None]), lambda: torch.bmm(A[None], B[None])),
    "baddbmm": (
        lambda: MATMUL["baddbmm"](BIAS[None, None], A[None], B[None], beta=2),
        lambda: torch.baddbmm(BIAS[None, None], A[None], B[None], beta=2),
    ),
    "softmax": (
        lambda: cuda._softmax_group(KERNELS, "softmax")["_softmax"](A, 0, False),
        lambda: torch.softmax(A, 0),
    ),
    "half to float": (
        lambda: cuda._softmax_group(KERNELS, "log_softmax")["_log_softmax"](A.half(), 1, True),
        lambda: torch.log_softmax(A.half(), 1, dtype=torch.float32),
    ),
    "sum": (
        lambda: cuda._reduce_group(KERNELS, "sum")["sum.dim_IntList"](A, [0], True),
        lambda: A.sum(0, keepdim=True),
    ),
    "mean": (lambda: cuda._reduce_group(KERNELS, "mean")["mean"](A), lambda: A.mean()),
    "layer_norm": (
        lambda: cuda._norm_group(KERNELS)["native_layer_norm"](A, [20], None, None, 1e-5)[0],
        lambda: torch.nn.functional.layer_norm(A, (20,)),
    ),
    "rms_norm": (
        lambda: cuda._norm_group(KERNELS)["_fused_rms_norm"](A, [20], None, 1e-6)[0],
        lambda: torch.nn.functional.rms_norm(A, (20,), eps=1e-6),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_are_called_as_torch_calls_them(name: str) -> None:
    ours, own = (call() for call in CALLS[name])
    assert (ours.dtype, ours.shape) == (own.dtype, own.shape)
    torch.testing.assert_close(ours, own, rtol=2e-3, atol=2e-3)


def test_out_forms() -> None:
    out = torch.empty(5, 9)
    assert MATMUL["mm.out"](A, B, out=out) is out
    torch.testing.assert_close(out, A @ B)
    grown = BIAS.expand(5, 9).clone()
    MATMUL["addmm.out"](grown, A, B, out=grown)  # the bias is the output
    torch.testing.assert_close(grown, torch.addmm(BIAS, A, B))
    small = torch.empty(0)
    cuda._softmax_group(KERNELS, "softmax")["_softmax.out"](A, 1, False, out=small)
    torch.testing.assert_close(small, A.softmax(1))


def test_rms_statistics() -> None:
    root = cuda._norm_group(KERNELS)["_fused_rms_norm"](A, [20], None, 1e-6)[1]
    assert root.shape == (5, 1)
    torch.testing.assert_close(root, torch.rsqrt(A.square().mean(-1, keepdim=True) + 1e-6))


def padded_mask(pads: tuple[int, ...], queries: int, keys: int, end: int) -> Tensor:
    """(B, 1, T, S) as transformers makes it: causal, left padding, free places after ``end``."""
    place, row = torch.arange(keys), torch.arange(end - queries, end)
    seen = (place <= row[:, None]) & (place < end)
    return torch.stack([(seen & (place >= pad))[None] for pad in pads])


@pytest.mark.parametrize(("queries", "keys", "end"), [(6, 6, 6), (1, 6, 6), (2, 10, 7)])
def test_bounds_of_decoder_masks(queries: int, keys: int, end: int) -> None:
    mask = padded_mask((0, 2, 4), queries, keys, end)
    found = cuda._bounds(mask, 3, queries, keys)
    assert found is not None
    start, stop, plain = found
    assert plain is None
    assert start.tolist() == [0, 2, 4]
    assert stop.tolist() == [end] * 3
    assert cuda._bounds(mask, 3, queries, keys) is found  # once a forward pass
    mask[0, :, :, 0] = False  # a mask that is written to is another one
    changed = cuda._bounds(mask, 3, queries, keys)
    assert changed is not None
    assert changed[0].tolist() == [1, 2, 4]
    mask[0, :, :, 0] = True
    low = torch.finfo(torch.float32).min
    additive = torch.zeros(mask.shape).masked_fill(~mask, low)
    again = cuda._bounds(additive, 3, queries, keys)
    assert again is not None
    assert torch.equal(again[0], start)


def test_other_masks_are_recognised() -> None:
    mask = padded_mask((0, 2), 6, 6, 6)
    holes = mask.clone()
    holes[0, 0, 5, 2] = False
    window = mask & ~torch.ones(6, 6, dtype=torch.bool).tril(-3)
    both_ways = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    biased = torch.zeros(mask.shape).masked_fill(~mask, -math.inf) + torch.eye(6)
    for other, plain in ((holes, [False, True]), (window, [False, False]),
                         (both_ways, [False, False])):  # fmt: skip
        found = cuda._bounds(other, 2, 6, 6)
        assert found is not None
        assert found[2] is not None
        assert found[2].tolist() == plain
    assert cuda._bounds(biased, 2, 6, 6) is None
    assert cuda._bounds(mask.expand(2, 4, 6, 6), 2, 6, 6) is None


@pytest.mark.parametrize("kind", ["decoder", "holes", "none"])
def test_attention_agrees_with_the_cpu(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 16, generator=draw)
    k, v = (torch.randn(2, 2, 6, 16, generator=draw) for _ in range(2))
    mask = None if kind == "none" else padded_mask((0, 2), 6, 6, 6)
    if kind == "holes":
        assert mask is not None
        mask[0, 0, 5, 2] = False
    ours = cuda.attention(q, k, v, mask, 0.25, mask is None)
    wanted, _ = on_cpu(q, k, v, mask, 0.25, mask is None)
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    if mask is not None:
        assert not bool(ours[1, :, :2].any())
        alone = cuda.attention(q[1:], k[1:], v[1:], mask[1:], 0.25, False)
        assert same_bits(alone, ours[1:])


def test_tf32_is_what_a_run_asked_for() -> None:
    try:
        for asked in (True, False):
            set_switches(tf32=asked, reduced_precision=True, threads=None)
            assert cuda.tf32() is asked
            assert MATMUL["mm"](A, B).shape == (5, 9)
    finally:
        set_switches(tf32=False, reduced_precision=True, threads=None)


def test_missing_triton_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "nondet_kernels.matmul", None)
    monkeypatch.delattr("nondet_kernels.matmul")
    cuda._kernels.cache_clear()
    with pytest.raises(RuntimeError, match=r"llm-nondet\[gpu\]"):
        cuda._kernels()
