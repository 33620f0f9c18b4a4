"""dtype=layercast: accuracy against float64, weights left alone, coverage and its mutations."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_llama import make_tiny_llama
from torch import Tensor, nn

from nondet.backends.base import Request
from nondet.backends.hf import HFBackend
from nondet.models import find_model
from nondet.precision.cast_use import CastUse
from nondet.precision.coverage import probe
from nondet.precision.layercast import LayerCast
from nondet.precision.products import BLOCK_ELEMENTS, plain_product
from nondet.settings import ModelSetting, setting_from

SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 160,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
    "max_position_embeddings": 128, "head_dim": 16,
}  # fmt: skip
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "qwen2, tied": ("Qwen2Config", {**SMALL, "tie_word_embeddings": True}),
    "qwen3, norms of heads": ("Qwen3Config", SMALL),
    "gemma, scaled embedding": ("Gemma3TextConfig", {**SMALL, "pad_token_id": 0}),
    "mixtral, experts": ("MixtralConfig", {**SMALL, "num_local_experts": 4}),
    "gpt2, conv1d": ("GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 160}),
}
IDS = torch.tensor([[5, 17, 130, 44, 9, 81, 3, 60, 22, 100, 31, 7]])


def build(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A random model whose weights are 16-bit numbers, in any format."""
    kind, changes = CONFIGS[name]
    torch.manual_seed(3)
    config = getattr(transformers, kind)(**changes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():  # vectors of ones and zeros would hide a missing cast
        if parameter.dim() == 1:
            parameter.data += torch.randn(parameter.shape) * 0.3
    if "mixtral" in name:
        model.set_experts_implementation("eager")  # the default has no float64
    return model.to(torch.bfloat16).to(dtype).eval()


def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    with torch.inference_mode():
        result: Tensor = model(ids, use_cache=False).logits
    return result


def rms(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).square().mean().sqrt())


def bits(model: nn.Module) -> list[Tensor]:
    return [p.detach().view(torch.int16).clone() for p in model.parameters()]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_as_accurate_as_full_fp32(name: str) -> None:
    # Buffers such as rotary tables are FP32 in all three, or the comparison would be of them.
    model = build(name)
    wide, exact = copy.deepcopy(model).float(), copy.deepcopy(model).double()
    truth = logits(exact)
    before, narrow = bits(model), rms(logits(model), truth)
    cast = LayerCast(model)
    found = logits(model)
    assert found.dtype == torch.float32
    assert rms(found, truth) <= 1.1 * rms(logits(wide), truth)
    assert rms(found, truth) < 1e-3 * narrow
    coverage = probe(cast, 5)
    assert coverage.holes == ()
    assert all(e.computed in ("float32", "not seen") for e in coverage.entries)
    assert all(torch.equal(a, b) for a, b in zip(before, bits(model), strict=True))
    cast.undo()
    assert logits(model).dtype == torch.bfloat16
    assert model.dtype == torch.bfloat16


def test_smollm2_is_as_accurate_as_full_fp32_with_its_weights_untouched() -> None:
    path = str(find_model(ModelSetting()).path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    ids = torch.tensor([[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]])
    truth = logits(load(path, dtype=torch.float64), ids)
    full = rms(logits(load(path, dtype=torch.float32), ids), truth)
    model = load(path, dtype=torch.bfloat16)
    before = bits(model)
    cast = LayerCast(model)
    assert rms(logits(model, ids), truth) <= 1.1 * full
    assert all(torch.equal(a, b) for a, b in zip(before, bits(model), strict=True))
    summary = probe(cast, 1).summary()
    assert (summary["holes"], summary["unseen"]) == (0, 0)
    assert summary["modules"] == {"embedding": 1, "linear": 211, "swap": 61}


def _narrow_norm(model: Any) -> None:
    norm = model.model.layers[1].input_layernorm
    inner = norm.forward
    norm.forward = lambda x: inner(x).bfloat16()


def _narrow_activation(model: Any) -> None:
    # Down and up again: no module sees a 16-bit number, the operations tell.
    act = model.model.layers[0].mlp.act_fn
    inner = act.forward
    act.forward = lambda x: inner(x.bfloat16()).float()


def _narrow_residual(model: Any) -> None:
    # Adding it to the FP32 stream hides it from every module.
    mlp = model.model.layers[0].mlp
    inner = mlp.forward
    mlp.forward = lambda x: inner(x).bfloat16()


def _uncast_layer(model: Any) -> None:
    old = model.model.layers[1].self_attn.o_proj
    model.model.layers[1].self_attn.o_proj = nn.Sequential(_Narrow(), copy.deepcopy(old))
    del model.model.layers[1].self_attn.o_proj[1].forward


class _Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


@pytest.mark.parametrize(
    ("mutation", "words"),
    [
        (_narrow_norm, "in model.layers.1.input_layernorm"),
        (_narrow_activation, "in model.layers.0.mlp.act_fn"),
        (_narrow_residual, "in model.layers.0.mlp"),
        (_uncast_layer, "model.layers.1.self_attn.o_proj.1 (Linear) holds bfloat16 and is not"),
    ],
)
def test_a_hole_is_found(mutation: Any, words: str) -> None:
    model = build("llama")
    cast = LayerCast(model)
    assert probe(cast, 5).holes == ()
    mutation(model)
    holes = probe(cast, 5).holes
    assert any(words in hole for hole in holes), holes


def test_modules_that_were_not_called_are_named() -> None:
    model = build("llama")
    model.extra = nn.Linear(4, 4).to(torch.bfloat16)
    coverage = probe(LayerCast(model), 5)
    assert coverage.unseen == ("extra",)
    assert coverage.holes == ()


def backend(folder: Path, dtype: str = "layercast", kernels: str = "default",
            **options: Any) -> HFBackend:  # fmt: skip
    setting = setting_from(
        {
            "backend": {"name": "hf", **options},
            "dtype": dtype,
            "kernels": kernels,
            "threads": 1,
            "max_new_tokens": 12,
        }
    )
    HFBackend.check(setting)
    made = HFBackend(setting, str(folder))
    made.start()
    return made


PROMPTS = [(5, 6, 7, 200), (90,), tuple(range(30, 60)), (8, 1), (77, 78, 79), (3, 3, 3, 3, 4)]


def answers(made: HFBackend, size: int) -> list[Any]:
    wave = [Request(str(n), p) for n, p in enumerate(PROMPTS)]
    return [r for at in range(0, len(wave), size) for r in made.generate(wave[at : at + size])]


def test_tokens_hold_over_batch_sizes_at_least_as_often_as_in_fp32(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path, initializer_range=0.3)
    same = {}
    for dtype in ("layercast", "fp32"):
        made = backend(folder, dtype)
        pairs = [zip(answers(made, 1), answers(made, size), strict=True) for size in (2, 6)]
        same[dtype] = sum(a.tokens.tolist() == b.tokens.tolist() for p in pairs for a, b in p)
        made.close()
    assert same["layercast"] >= same["fp32"]


def test_invariant_kernels_and_layercast_leave_no_bit_to_the_batch(tiny: Path) -> None:
    made = backend(tiny, kernels="invariant")
    for a, b in zip(answers(made, 1), answers(made, 4), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()
    made.close()


def test_memory_of_weights_and_cache_and_the_time_to_the_first_token(tiny: Path) -> None:
    found = {}
    for key, dtype, options in (
        ("fp32", "fp32", {}),
        ("cast", "layercast", {}),
        ("half", "layercast", {"kv_cache": "bf16"}),
    ):
        made = backend(tiny, dtype, **options)
        answers(made, 6)
        assert made.first_token_s is not None
        assert made.first_token_s > 0
        found[key] = made.memory_mb()
        seen = made.observed()
        assert seen["parameter_dtypes"] == ["float32" if key == "fp32" else "bfloat16"]
        if key != "fp32":
            assert seen["layercast"]["holes"] == 0
        made.close()
    weights = {key: mb["weights_mb"] for key, mb in found.items()}
    # Rotary tables are FP32 buffers.
    assert 0.5 <= weights["cast"] / weights["fp32"] < 0.51  # type: ignore[operator]
    assert found["cast"]["cache_mb"] == found["fp32"]["cache_mb"]
    assert found["half"]["cache_mb"] == found["cast"]["cache_mb"] / 2  # type: ignore[operator]


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
def test_weights_stay_as_the_checkpoint_has_them(tmp_path: Path, stored: str, named: bool) -> None:
    model = build("llama", getattr(torch, stored))
    make_tiny_llama(tmp_path)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    values = json.loads(config.read_text())
    assert values["dtype"] == stored
    if not named:  # as in old checkpoints
        del values["dtype"]
        config.write_text(json.dumps(values))
    made = backend(tmp_path)
    half = "bfloat16" if stored == "float32" else stored
    assert made.observed()["parameter_dtypes"] == [half]
    made.close()


# VmHWM and not ru_maxrss, which a child takes over from the process that started it.
LOAD = """
import sys
from nondet.backends.base import Request
from nondet.backends.hf import HFBackend
from nondet.settings import setting_from
asked = {"dtype": sys.argv[2], "threads": 1, "max_new_tokens": 2}
made = HFBackend(setting_from(asked), sys.argv[1])
made.start()
made.generate([Request("0", (5, 6))])  # weights of a file are read when they are used
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_loading_never_holds_an_fp32_copy(tmp_path: Path) -> None:
    folder = make_tiny_llama(
        tmp_path, hidden_size=1024, intermediate_size=8192, num_hidden_layers=4
    )
    weights = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert weights > 200e6
    peak = {}
    for dtype in ("bf16", "layercast", "fp32"):
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(folder), dtype],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        peak[dtype] = int(done.stdout.split()[-1]) * 1024
    # One block of cast weights at a time; FP32 takes the size of the file again, at least.
    assert peak["layercast"] - peak["bf16"] < 8 * BLOCK_ELEMENTS, json.dumps(peak)
    assert peak["fp32"] - peak["bf16"] > 0.8 * weights, json.dumps(peak)


def test_the_plain_product_casts_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 3, 40, generator=draw), torch.randn(50, 40, generator=draw).bfloat16()
    c = torch.randn(50, generator=draw).bfloat16()
    whole = plain_product(x, w, c)
    largest: list[int] = []
    own = torch.nn.functional.linear

    def linear(x: Tensor, w: Tensor, c: Tensor | None) -> Tensor:
        largest.append(w.numel())
        return own(x, w, c)

    monkeypatch.setattr("nondet.precision.products.BLOCK_ELEMENTS", 280)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    torch.testing.assert_close(plain_product(x, w, c), whole)
    assert (max(largest), len(largest)) == (280, 8)


def test_cast_use_leaves_views_narrow_and_computes_wide() -> None:
    w = torch.randn(3, 4, 5).bfloat16()
    x = torch.randn(2, 5)
    with CastUse(fused=False):
        part = w[1]
        row = torch.nn.functional.embedding(torch.tensor([2]), part)
        y = torch.nn.functional.linear(x, part)
        kept = x.to(w.dtype)
        added = 1 + part
    assert (part.dtype, row.dtype, y.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert kept is x
    torch.testing.assert_close(y, x @ w[1].float().t())
    assert torch.equal(added, 1 + w[1].float())
