"""The short ways of a CPU model give the bits of the operations they stand for, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from test_invariant_matmul import drawn
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from nondet.invariant import blocks, cpu_packed, cpu_units, invariant, observed
from nondet.invariant.bits import same_bits
from nondet.invariant.blocks import Shape, product
from nondet.invariant.cpu_modules import rms_norm
from nondet.invariant.cpu_packed import LIMIT, Forms, Packed, Packing, pack, packed_sizes

ROWS = (1, 2, 3, 4, 5, 8, 16, 33)
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
KINDS = ("normal", "wide", "cancelling")


@pytest.fixture(params=[False, True], ids=["as found", "no 16-bit units"])
def without_units(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """This CPU, and one that multiplies 16-bit types as FP32 for want of units."""
    if request.param:
        for module in (blocks, cpu_packed):
            monkeypatch.setattr(
                module, "widened", lambda dtype: dtype in (torch.bfloat16, torch.float16)
            )
    return bool(request.param)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_copy_gives_the_bits_of_blocks(
    dtype: torch.dtype, threads: int, without_units: bool
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for n, k in ((64, 64), (255, 33), (192, 576), (96, 1536)):
            for kind in KINDS:
                x, weight = drawn(kind, 140, n, k, dtype)
                packed = pack(weight)
                if packed is None:
                    continue
                wanted = product(x, weight.t())
                for rows in (*ROWS, 64, 140):
                    for start in {0, (rows * 7) % (141 - rows), 140 - rows}:
                        part = slice(start, start + rows)
                        assert same_bits(packed(x[part]), wanted[part]), (n, k, kind, rows)
    finally:
        torch.set_num_threads(before)


def test_wide_types_have_a_copy_and_a_run_says_so() -> None:
    # Without one, the test above would compare nothing.
    packed = pack(torch.randn(192, 576))
    assert packed is not None
    with invariant(device="cpu"):
        name = f"float32 192x576 threads={torch.get_num_threads()}"
        found = observed()["cpu_products"][name]
    assert found["copy"] == list(packed.sizes)
    assert 16 in found["blocks"]
    assert "cpu_products" not in observed()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neighbours_of_any_value_change_nothing(dtype: torch.dtype, without_units: bool) -> None:
    layer = nn.Linear(96, 64, bias=False).to(dtype)
    x = torch.randn(9, 96).to(dtype)
    with invariant(model=layer, device="cpu"), torch.inference_mode():
        wanted = layer(x[4:5].clone())
        for value in (math.nan, math.inf, -math.inf, torch.finfo(dtype).max):
            poisoned = x.clone()
            poisoned[[0, 3, 5, 8]] = value
            assert same_bits(layer(poisoned)[4:5], wanted), value


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_short_and_long_way_of_a_linear_layer(
    dtype: torch.dtype, bias: bool, without_units: bool
) -> None:
    layer = nn.Linear(160, 48, bias=bias).to(dtype)
    wide = torch.randn(33, 3, 161).to(dtype)
    for x in (wide[:, :, :160], wide[:, 0, 1:], wide[:0, 0, 1:], wide[0, 0, 1:]):
        with invariant(model=layer, device="cpu"):
            long = layer(x).detach()
            with torch.inference_mode():
                assert same_bits(layer(x), long)
        assert long.shape == (*x.shape[:-1], 48)


def test_changed_weights_are_seen() -> None:
    layer = nn.Linear(64, 64, bias=False)
    x = torch.randn(2, 64)
    with invariant(model=layer, device="cpu"), torch.no_grad():
        first = layer(x)
        layer.weight.mul_(2)
        assert same_bits(layer(x), first * 2)
        layer.weight = nn.Parameter(layer.weight / 2)
        assert same_bits(layer(x), first)


def test_copies_stay_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIMIT > 0
    monkeypatch.setattr(cpu_packed, "LIMIT", 2 * 64 * 64 * 4)
    packing, weights = Packing(), [torch.randn(64, 64) for _ in range(3)]
    assert [packing.find(weight) is not None for weight in weights] == [True, True, False]
    assert packing.bytes == cpu_packed.LIMIT
    weights[0].mul_(2)
    assert packing.find(weights[0]) is not None
    assert packing.bytes == cpu_packed.LIMIT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [64, 100, 576])
def test_short_and_long_way_of_a_norm(dtype: torch.dtype, width: int) -> None:
    norm = LlamaRMSNorm(width, eps=1e-5).to(dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width))
    x = (torch.randn(700, width) * 4).to(dtype)
    with invariant(model=norm, device="cpu"), torch.inference_mode():
        assert "forward" in vars(norm)
        wanted = type(norm).forward(norm, x)
        for rows in (*ROWS, 700):
            assert same_bits(norm(x[:rows]), wanted[:rows])
            assert same_bits(norm(x[None, -rows:]), wanted[None, -rows:])
        poisoned = x[:3].clone()
        poisoned[::2] = math.nan
        assert same_bits(norm(poisoned)[1], wanted[1])
        assert same_bits(rms_norm(x, norm.weight, 1e-5), wanted)


def test_no_less_accurate_than_torch(without_units: bool) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        ours, theirs = [], []
        for n, k in ((64, 576), (192, 300), (96, 1536)):
            for kind in ("normal", "wide"):
                x, weight = drawn(kind, 48, n, k, dtype, seed=n)
                packed = pack(weight)
                exact = x.double() @ weight.double().t()
                scale = (x.double().abs() @ weight.double().abs().t()) * torch.finfo(dtype).eps
                own = product(x, weight.t()) if packed is None else packed(x)
                ours.append(((own.double() - exact) / scale).abs())
                theirs.append(((torch.mm(x, weight.t()).double() - exact) / scale).abs())
        for measure in (torch.max, torch.mean):
            our = float(measure(torch.stack([measure(e) for e in ours])))
            their = float(measure(torch.stack([measure(e) for e in theirs])))
            assert our <= 1.1 * their


def test_without_units_a_product_is_that_of_fp32_rounded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x, weight = drawn("wide", 21, 48, 160, dtype)
        bias = torch.randn(48).to(dtype)
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "widened", lambda kind: kind != torch.float32)
            got = product(x, weight.t(), bias, 0.5, 2.0)
            out = torch.empty(48, 21, dtype=dtype).t()
            assert product(x, weight.t(), bias, 0.5, 2.0, out) is out
        wide = product(x.float(), weight.float().t(), bias.float(), 0.5, 2.0)
        assert same_bits(got, wide.to(dtype))
        assert same_bits(out.contiguous(), got)


@pytest.mark.parametrize(
    ("machine", "units", "wanted"),
    [("x86_64", False, True), ("AMD64", False, True), ("x86_64", True, False),
     ("aarch64", False, False)],
)  # fmt: skip
def test_which_cpus_have_no_units(
    monkeypatch: pytest.MonkeyPatch, machine: str, units: bool, wanted: bool
) -> None:
    monkeypatch.setattr(cpu_units.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: units)
    ask = cpu_units.widened.__wrapped__
    assert ask(torch.bfloat16) is wanted
    assert not ask(torch.float32)


def test_a_copy_is_packed_for_one_number_of_rows_at_a_time() -> None:
    x, weight = drawn("cancelling", 16, 96, 576, torch.float32)
    forms = Forms(weight)
    exact = x.double() @ weight.double().t()
    for rows in (2, 8, 2, 4, 1, 16):
        found = forms(x[:rows].clone())
        assert found.shape == (rows, 96)
        scale = x[:rows].double().abs() @ weight.double().abs().t()
        assert float(((found.double() - exact[:rows]).abs() / scale).max()) < 1e-5
        if 1 < rows <= 8:
            assert forms._form is not None
            assert forms._form[0] == rows


def test_few_rows_are_one_block_and_many_take_no_small_one() -> None:
    for sizes in ((2, 4, 8, 16, 32), (2, 8), (1, 2, 4), (16, 64)):
        for rows in range(1, 150):
            plan = cpu_packed._planned(rows, sizes)
            ends = [start + size for start, size in plan]
            assert [start for start, _ in plan] == [0, *ends[:-1]]
            assert ends[-1] >= rows > plan[-1][0]
            assert all(size in sizes for _, size in plan)
            if rows <= 8 and rows <= sizes[-1]:
                assert len(plan) == 1
            elif sizes[-1] > 8:
                assert all(size > 8 for _, size in plan)


def test_a_wider_copy_counts_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (blocks, cpu_packed):
        monkeypatch.setattr(module, "widened", lambda dtype: dtype == torch.bfloat16)
    packing, weight = Packing(), torch.randn(64, 64).bfloat16()
    assert packing.find(weight) is not None
    assert packing.bytes == 2 * weight.nbytes
    weight.mul_(2)
    assert packing.find(weight) is not None
    assert packing.bytes == 2 * weight.nbytes


def test_mutation_a_copy_with_another_order_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(48, 640, torch.float32, "rows", False, torch.get_num_threads())
    real = cpu_packed._multiply

    def other_order(weight: Tensor) -> cpu_packed.Multiply:
        back = torch.arange(weight.shape[1] - 1, -1, -1)
        turned = real(weight[:, back].contiguous())
        return lambda block: turned(block[:, back].contiguous())

    monkeypatch.setattr(cpu_packed, "_sizes", {})
    monkeypatch.setattr(cpu_packed, "_multiply", other_order)
    assert packed_sizes(shape) == ()
    assert pack(torch.randn(48, 640)) is None


def test_mutation_filling_that_leaks_is_caught() -> None:
    x, weight = drawn("normal", 5, 32, 64, torch.float32)

    def leaking(block: Tensor) -> Tensor:
        return (block + block.mean(0) * 1e-3) @ weight.t()

    leaky = Packed(leaking, (2, 8), torch.zeros(8, 64))
    assert not same_bits(leaky(x)[:1], leaky(x[:1]))
    fine = Packed(lambda block: block * 2, (2, 8), torch.zeros(8, 64))
    assert same_bits(fine(x), x * 2)
