"""Whole models: logits and tokens do not depend on batch, padding, cache or attention asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from nondet.invariant import default_kernels, invariant_kernels
from nondet.invariant.bits import same_bits
from nondet.invariant.localise import Finding, localise

BATCHES = (1, 2, 3, 4, 8)
PADS = (0, 1, 5, 33, 70)
Generated = tuple[list[list[int]], list[Tensor]]


def llama(dtype: torch.dtype, attention: str = "sdpa") -> LlamaForCausalLM:
    """A random Llama with sharp logits, wide enough for the libraries to change kernels."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=384, intermediate_size=688, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, vocab_size=320, max_position_embeddings=512,
        initializer_range=0.2, attn_implementation=attention,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def prompts(count: int = 8, longest: int = 40, vocabulary: int = 320) -> list[list[int]]:
    draw = torch.Generator().manual_seed(7)
    lengths = [longest, 3, 17, 33, 1, 25, 40, 12][:count]
    return [torch.randint(3, vocabulary, (n,), generator=draw).tolist() for n in lengths]


def generate(model: Any, rows: Sequence[list[int]], batch: int, pads: int = 0, new: int = 8,
             **options: Any) -> Generated:  # fmt: skip
    """Greedy tokens and raw logits of every row, in waves of ``batch`` padded on the left."""
    tokens: list[list[int]] = []
    logits: list[Tensor] = []
    for start in range(0, len(rows), batch):
        wave = rows[start : start + batch]
        width = max(map(len, wave)) + pads
        ids = torch.tensor([[2] * (width - len(row)) + row for row in wave])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in wave])
        with torch.inference_mode():
            done = model.generate(
                ids, attention_mask=mask, max_new_tokens=new, do_sample=False, eos_token_id=None,
                pad_token_id=2, return_dict_in_generate=True, output_logits=True,
                disable_compile=True, **options,
            )  # fmt: skip
        tokens += done.sequences[:, width:].tolist()
        logits += list(torch.stack(done.logits, 1))
    return tokens, logits


def equal(a: Generated, b: Generated) -> bool:
    return a[0] == b[0] and all(same_bits(x, y) for x, y in zip(a[1], b[1], strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_default_differs_and_invariant_does_not(dtype: torch.dtype) -> None:
    # A15, A16: the detector must find torch's own kernels wanting, or it proves nothing.
    model, rows = llama(dtype), prompts()
    default = generate(model, rows, 1)
    assert any(not equal(default, generate(model, rows, b)) for b in BATCHES[1:])
    assert equal(default, generate(model, rows, 1))  # run to run, nothing changes
    with invariant_kernels(model):
        wanted = generate(model, rows, 1)
        for batch in BATCHES:
            assert equal(wanted, generate(model, rows, batch)), batch
        for pads in PADS:
            assert equal(wanted, generate(model, rows, 3, pads)), pads
    assert equal(default, generate(model, rows, 1))
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_padding_from_0_to_70_and_attention_asked_for(dtype: torch.dtype) -> None:
    sdpa, eager, rows = llama(dtype), llama(dtype, "eager"), prompts(2)
    with invariant_kernels(sdpa), invariant_kernels(eager):
        wanted = generate(sdpa, rows, 1, new=3)
        for pads in range(71):
            assert equal(wanted, generate(sdpa, rows, 2, pads, new=3)), pads
        for pads in (0, 31, 70):
            assert equal(wanted, generate(eager, rows, 2, pads, new=3)), pads


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_caches_and_prefill_against_decode(dtype: torch.dtype, attention: str) -> None:
    # A18: a static cache with left padding gives what the dynamic one gives.
    model, rows = llama(dtype, attention), prompts()
    with invariant_kernels(model):
        wanted = generate(model, rows, 1)
        for batch in (1, 4, 8):
            assert equal(wanted, generate(model, rows, batch, cache_implementation="static"))
        for row, tokens, logits in zip(rows, *wanted, strict=True):
            with torch.inference_mode():
                whole = model(torch.tensor([row + tokens])).logits[0, len(row) - 1 : -1]
            assert same_bits(whole.float(), logits)


def test_each_group_can_be_left_out() -> None:
    model, rows = llama(torch.float32), prompts()
    with invariant_kernels(model, ops=("attention", "mean", "pointwise")):
        assert not equal(generate(model, rows, 1), generate(model, rows, 8))  # products are missing
    with invariant_kernels(model, ops=("matmul", "mean", "pointwise")):
        assert model.config._attn_implementation == "sdpa"


def test_off_inside_on_is_the_models_own_attention() -> None:
    for attention in ("sdpa", "eager"):
        model, rows = llama(torch.bfloat16, attention), prompts()
        wanted = generate(model, rows, 4)
        with invariant_kernels(model):
            inside = generate(model, rows, 4)
            with default_kernels():
                assert equal(generate(model, rows, 4), wanted)
            with invariant_kernels(model):
                assert equal(generate(model, rows, 4), inside)
            assert model.config._attn_implementation == "sdpa"
        assert model.config._attn_implementation == attention


def test_coverage_of_a_forward_pass() -> None:
    model, rows = llama(torch.bfloat16), prompts()
    with invariant_kernels(model) as switch:
        found = switch.coverage(lambda: generate(model, rows, 4, new=2))
    assert not found.holes, str(found)
    verdict = {entry.operation: entry.verdict for entry in found.entries}
    for name in ("aten::mm", "aten::mean.dim", "aten::silu", "nondet::attention"):
        assert verdict[name] == "covered"
    assert verdict["aten::mul.Tensor"] == "nature"
    assert verdict["aten::cos"] == "proven"
    assert "aten::mm" in str(found)
    assert found.rows()[0].keys() == {"operation", "calls", "verdict", "reason"}


def test_coverage_names_the_holes() -> None:
    model, rows = llama(torch.float32), prompts()
    with invariant_kernels(model, ops=("attention",)) as switch:
        found = switch.coverage(lambda: generate(model, rows, 4, new=2))
    assert "aten::mm" in {entry.operation for entry in found.holes}
    assert found.entries[0].verdict == "hole"
    with invariant_kernels(model) as switch:
        with pytest.raises(RuntimeError, match="watch"):
            switch.coverage()
        leak = torch.ones(4, 3)
        found = switch.coverage(lambda: torch.cumsum(leak, 0))
        assert [entry.verdict for entry in found.entries] == ["hole"]
        turned = torch.randn(64, 64, dtype=torch.complex64)
        found = switch.coverage(lambda: torch.mm(turned, turned))
    # The kernels leave complex numbers to torch.
    assert [(e.operation, e.verdict) for e in found.entries] != [("aten::mm", "covered")]


def test_attention_of_another_kind_is_a_hole_and_still_runs() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=320, sliding_window=8, pad_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    model, rows = Gemma2ForCausalLM(config).eval(), prompts(4)
    default = generate(model, rows, 4, new=3)
    with invariant_kernels(model) as switch:
        found = switch.coverage(lambda: generate(model, rows, 4, new=3))
        again = generate(model, rows, 4, new=3)
    assert "attention with softcap" in {entry.operation for entry in found.holes}
    for x, y in zip(default[1], again[1], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)


def test_sliding_windows() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=320, sliding_window=8, initializer_range=0.2,
    )  # fmt: skip
    model, rows = MistralForCausalLM(config).eval(), prompts()
    with invariant_kernels(model):
        wanted = generate(model, rows, 1)
        for batch, pads in ((3, 0), (8, 0), (4, 9)):
            assert equal(wanted, generate(model, rows, batch, pads)), (batch, pads)
        ids = torch.tensor([rows[0] + wanted[0][0]])
        with torch.inference_mode():
            whole = model(ids).logits[0, len(rows[0]) - 1 : -1]
        assert same_bits(whole, wanted[1][0])


def located(model: LlamaForCausalLM) -> Finding:
    row = prompts(1)[0]
    others = [[(token + shift) % 317 + 3 for token in row] for shift in (1, 5, 11)]
    return localise(model, row, others, row=1, steps=3)


def test_localiser_names_a_product_and_then_nothing() -> None:
    model = llama(torch.float32)
    found = located(model)
    assert found.status == "located"
    assert found.operation in ("aten::mm", "aten::bmm", "aten::addmm")
    assert found.module.endswith("_proj") or found.module == "lm_head"
    assert found.differing > 0
    assert "same inputs, other outputs" in str(found)
    with invariant_kernels(model):
        assert located(model).status == "identical"


def test_localiser_finds_a_planted_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(torch.float32)
    layer = model.model.layers[1].mlp
    real = layer.act_fn.forward

    def leaking(x: Tensor) -> Tensor:
        return real(x).softmax(0) if x.shape[1] == 1 else real(x)  # over the batch, in decode only

    monkeypatch.setattr(layer.act_fn, "forward", leaking)
    with invariant_kernels(model):
        found = located(model)
    assert (found.status, found.operation, found.step) == ("located", "aten::_softmax", 1)
    assert found.module == "model.layers.1.mlp.act_fn"
    with pytest.raises(ValueError, match="as long as the prompt"):
        localise(model, [1, 2], [[1]])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_smollm2(dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nondet.models import find_model
    from nondet.settings import ModelSetting

    path = find_model(ModelSetting()).path
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [
        "What is 17 * 23 + 5?",
        "Name three rivers.",
        "Write a story about a dragon who reads.",
        "Explain recursion.",
        "Who wrote Hamlet, and when was it first performed in London?",
        "List ten capital cities.",
        "Compute 12 + 30 * 2 step by step, please.",
        "Hello",
    ]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    default = generate(model, rows, 1, new=12)
    differs = not equal(default, generate(model, rows, 8, new=12))
    assert differs or dtype != torch.bfloat16
    with invariant_kernels(model):
        wanted = generate(model, rows, 1, new=12)
        for batch, pads in ((2, 0), (3, 1), (4, 38), (8, 0), (1, 70)):
            assert equal(wanted, generate(model, rows, batch, pads, new=12)), (batch, pads)
        assert equal(wanted, generate(model, rows, 8, new=12, cache_implementation="static"))
        whole = model(torch.tensor([rows[0] + wanted[0][0]])).logits[0, len(rows[0]) - 1 : -1]
        assert same_bits(whole.detach().float(), wanted[1][0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_real_activations_of_smollm2(dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from nondet.models import find_model
    from nondet.settings import ModelSetting

    path = find_model(ModelSetting()).path
    ids = AutoTokenizer.from_pretrained(path)("The history of arithmetic began in Babylon. " * 9)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    kept: list[tuple[Tensor, Tensor]] = []
    for layer in (0, 2, 29):
        for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
            model.get_submodule(f"model.layers.{layer}.{name}").register_forward_pre_hook(
                lambda module, inputs, kept=kept: kept.append(
                    (inputs[0][0].clone(), module.weight.detach())
                )
            )
    with torch.no_grad():
        model(torch.tensor([ids["input_ids"]]))
    torchs = 0
    for x, weight in kept:
        own = torch.cat([torch.mm(row[None].clone(), weight.t()) for row in x[:40]])
        torchs += not same_bits(own, torch.mm(x[:40], weight.t()))
        with invariant_kernels(ops=("matmul",), device="cpu"):
            wanted = torch.cat([torch.mm(row[None].clone(), weight.t()) for row in x])
            for rows in (2, 4, 8, 16, 17, 33, 64, len(x)):
                assert same_bits(torch.mm(x[:rows], weight.t()), wanted[:rows])
                assert same_bits(torch.mm(x[-rows:], weight.t()), wanted[-rows:])
    if dtype is torch.bfloat16 and not torchs:
        # Seen on an AMD EPYC without 16-bit matrix units; FP32 differs there too.
        pytest.skip("torch's bf16 products do not depend on the rows on this CPU")
    assert torchs > 0
