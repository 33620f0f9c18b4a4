"""The switch on a GPU: whole models, CUDA graphs, both devices. Needs CUDA and nondet_kernels."""

from __future__ import annotations

import pytest
import torch
from test_invariant_model import equal, llama, prompts
from test_invariant_model import generate as on_cpu
from torch import Tensor

from nondet.invariant import default_kernels, invariant, invariant_kernels, registered_groups
from nondet.invariant.bits import same_bits
from nondet.invariant.operations import BaseOperations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class OnGpu:
    """A model whose generate takes CPU tensors, so that the CPU tests' loop can drive it."""

    def __init__(self, dtype: torch.dtype, attention: str = "sdpa") -> None:
        self.model = llama(dtype, attention).cuda()
        self.config = self.model.config

    def generate(self, ids: Tensor, attention_mask: Tensor, **options: object) -> object:
        done = self.model.generate(ids.cuda(), attention_mask=attention_mask.cuda(), **options)
        done.sequences = done.sequences.cpu()
        return done


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches_padding_caches_and_decode(dtype: torch.dtype, attention: str) -> None:
    gpu, rows = OnGpu(dtype, attention), prompts()
    with invariant_kernels(gpu.model):
        wanted = on_cpu(gpu, rows, 1)
        for batch, pads in ((2, 0), (3, 1), (4, 17), (8, 0), (1, 70), (8, 31)):
            assert equal(wanted, on_cpu(gpu, rows, batch, pads)), (batch, pads)
        assert equal(wanted, on_cpu(gpu, rows, 4, cache_implementation="static"))
        for row, tokens, logits in zip(rows, *wanted, strict=True):
            with torch.inference_mode():
                ids = torch.tensor([row + tokens]).cuda()
                whole = gpu.model(ids).logits[0, len(row) - 1 : -1]
            assert same_bits(whole.float(), logits)
    assert registered_groups() == frozenset()


def test_coverage_has_no_holes() -> None:
    gpu, rows = OnGpu(torch.bfloat16), prompts()
    with invariant_kernels(gpu.model) as switch:
        found = switch.coverage(lambda: on_cpu(gpu, rows, 4, new=2))
    verdict = {entry.operation: entry.verdict for entry in found.entries}
    assert verdict["aten::mm"] == "covered"
    assert verdict["nondet::attention"] == "covered"
    assert not found.holes, str(found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_semantics_of_the_overrides(dtype: torch.dtype) -> None:
    a, b = torch.randn(5, 48, dtype=dtype).cuda(), torch.randn(48, 32, dtype=dtype).cuda()
    bias = torch.randn(32, dtype=dtype).cuda()
    calls = {
        "mm": lambda: torch.mm(a, b),
        "addmm": lambda: torch.addmm(bias, a, b, beta=0.5, alpha=2),
        "beta 0": lambda: torch.addmm(bias * torch.nan, a, b, beta=0),
        "bmm": lambda: torch.bmm(a[None], b[None]),
        "baddbmm": lambda: torch.baddbmm(bias[None, None], a[None], b[None], beta=2),
        "linear": lambda: torch.nn.functional.linear(a, b.t(), bias),
        "softmax": lambda: torch.softmax(a, 0),
        "half_to_float": lambda: torch.log_softmax(a, -1, dtype=torch.float32),
        "mean": lambda: a.mean(),
        "mean of dims": lambda: a.mean((0, 1), keepdim=True),
        "sum": lambda: a.sum(0, dtype=torch.float32),
        "layer_norm": lambda: torch.nn.functional.layer_norm(a, (48,)),
        "rms_norm": lambda: torch.nn.functional.rms_norm(a, (48,)),
        "argmax": lambda: a.argmax(-1),
        "empty": lambda: torch.mm(a[:0], b),
    }
    for name, call in calls.items():
        own = call()
        with invariant(device="cuda"):
            ours = call()
        assert (ours.dtype, ours.shape) == (own.dtype, own.shape), name
        torch.testing.assert_close(ours, own, rtol=2e-2, atol=2e-2, msg=name)
    whole = torch.arange(6).view(2, 3).cuda()
    with invariant(device="cuda"), pytest.raises(RuntimeError):
        whole.mean(-1)


def test_a_cuda_graph_replays_the_same_bits() -> None:
    gpu = OnGpu(torch.bfloat16)
    ids = torch.randint(3, 300, (4, 33)).cuda()
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    with invariant_kernels(gpu.model), torch.inference_mode():
        for _ in range(3):
            wanted = gpu.model(ids, attention_mask=mask, use_cache=False).logits
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = gpu.model(ids, attention_mask=mask, use_cache=False).logits
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(got, wanted)
        alone = gpu.model(ids[:1], attention_mask=mask[:1], use_cache=False).logits
        assert same_bits(got[:1], alone)


def test_modules_take_the_product_that_the_operation_takes() -> None:
    gpu = OnGpu(torch.bfloat16)
    ids = torch.randint(3, 300, (3, 17)).cuda()
    with invariant_kernels(gpu.model), torch.inference_mode():
        short = gpu.model(ids, use_cache=False).logits
        again = gpu.model(ids, use_cache=False).logits  # remembered launches
        with BaseOperations():
            long = gpu.model(ids, use_cache=False).logits
        assert same_bits(short, again)
        assert same_bits(short, long)
        assert same_bits(short[1:2], gpu.model(ids[1:2], use_cache=False).logits)


def test_compiled_products() -> None:
    x, w = torch.randn(33, 512).bfloat16().cuda(), torch.randn(300, 512).bfloat16().cuda()
    bias = torch.randn(300).bfloat16().cuda()
    with invariant(device="cuda"), torch.inference_mode():
        eager = torch.nn.functional.linear(x, w, bias)
        compiled = torch.compile(lambda a: torch.nn.functional.linear(a, w, bias), dynamic=False)
        for rows in (1, 7, 33):
            assert same_bits(compiled(x[:rows]), eager[:rows]), rows


def test_off_inside_on() -> None:
    a, b = torch.randn(3, 512).cuda(), torch.randn(512, 300).cuda()
    own = torch.mm(a, b)
    with invariant(device="cuda"):
        ours = torch.mm(a, b)
        assert same_bits(ours[1:2], torch.mm(a[1:2], b))
        with default_kernels():
            assert same_bits(torch.mm(a, b), own)
        assert same_bits(torch.mm(a, b), ours)
    assert same_bits(torch.mm(a, b), own)


def test_gradients() -> None:
    x, w = torch.randn(6, 64).cuda(), torch.randn(40, 64).cuda().requires_grad_()
    grads = []
    for rows in (slice(None), slice(2, 3)):
        with invariant(device="cuda"):
            part = x[rows].clone().requires_grad_()
            torch.log_softmax(torch.nn.functional.linear(part, w), -1)[:, 3].sum().backward()
            grads.append(part.grad)
    assert same_bits(grads[0][2:3], grads[1])
