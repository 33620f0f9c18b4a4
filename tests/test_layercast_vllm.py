"""dtype=layercast on vLLM: the plugin on stand-ins for vLLM's classes, and on the real vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_backend_vllm import PYTHON, ROOT, arguments, needs_vllm, setting
from tiny_llama import make_tiny_llama

from nondet.backends import vllm_layercast as plugin
from nondet.backends.vllm import VLLMBackend


class Linear:
    """As vLLM's: makes a weight of the type it is told, repacks it, multiplies."""

    def create_weights(
        self,
        layer: Any,
        size: int,
        parts: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
    ) -> None:
        weight = torch.empty(sum(parts), size, dtype=params_dtype)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.repacked = True

    def apply(self, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)


class Embedding(Linear):
    """The same with a lookup."""

    def embedding(self, layer: Any, input_: torch.Tensor) -> torch.Tensor:
        return layer.weight[input_]  # type: ignore[no-any-return]


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> tuple[type[Linear], type[Embedding]]:
    """Fresh stand-ins in vLLM's place, with the plugin not yet registered."""
    linear = type("Linear", (Linear,), dict(vars(Linear)))
    embedding = type("Embedding", (Embedding,), {**vars(Linear), **vars(Embedding)})
    layers = "vllm.model_executor.layers"
    for name, content in (
        (f"{layers}.linear", {"UnquantizedLinearMethod": linear}),
        (f"{layers}.vocab_parallel_embedding", {"UnquantizedEmbeddingMethod": embedding}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("vllm", "vllm.model_executor", layers):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(plugin, "_registered", False)
    return linear, embedding


def test_weights_are_16_bit_and_results_fp32(
    classes: tuple[type[Linear], type[Embedding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.SWITCH, "bfloat16")
    plugin.register()
    plugin.register()  # vLLM may load it any number of times
    draw = torch.Generator().manual_seed(0)
    x, c = torch.randn(3, 8, generator=draw), torch.randn(6, generator=draw)
    for method in (cls() for cls in classes):
        layer = torch.nn.Module()
        method.create_weights(layer, 8, [2, 4], 8, 6, torch.float32)
        assert layer.weight.dtype == torch.bfloat16
        layer.weight.copy_(torch.randn(6, 8, generator=draw))
        method.process_weights_after_loading(layer)
        assert not hasattr(layer, "repacked")
        want = torch.nn.functional.linear(x, layer.weight.float(), c)
        assert torch.equal(method.apply(layer, x, c), want)
        assert plugin.state(layer)["stored_parameters"] == {"bfloat16": 48}
        narrow = torch.nn.Module()  # a model of another type is left alone
        method.create_weights(narrow, 8, [2], 8, 2, torch.float16)
        method.process_weights_after_loading(narrow)
        assert (narrow.weight.dtype, narrow.repacked) == (torch.float16, True)
    rows = method.embedding(layer, torch.tensor([4, 1]))  # type: ignore[attr-defined]
    assert torch.equal(rows, layer.weight[[4, 1]].float())


def test_without_the_switch_nothing_is_changed(
    classes: tuple[type[Linear], type[Embedding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(plugin.SWITCH, raising=False)
    plugin.register()
    layer = torch.nn.Module()
    classes[0]().create_weights(layer, 8, [2], 8, 2, torch.float32)
    assert layer.weight.dtype == torch.float32


def test_a_wide_matrix_is_a_hole() -> None:
    model = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(4), "experts": torch.nn.Linear(4, 4)})
    found = plugin.state(model)
    assert (found["holes"], found["holes_first"]) == (1, ["experts.weight"])


def test_the_engine_is_started_in_float32_with_the_switch() -> None:
    assert arguments(dtype="layercast")["dtype"] == "float32"
    assert VLLMBackend.environment(setting(dtype="layercast"))[plugin.SWITCH] == "bfloat16"
    assert plugin.SWITCH not in VLLMBackend.environment(setting(dtype="fp32"))


def test_every_process_of_vllm_registers_it(
    classes: tuple[type[Linear], type[Embedding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.SWITCH, "bfloat16")
    name = arguments(dtype="layercast", gpus=2)["worker_extension_cls"]
    sys.modules.pop(name.rpartition(".")[0], None)  # as in a process that starts
    import_module(name.rpartition(".")[0])
    layer = torch.nn.Module()
    classes[0]().create_weights(layer, 8, [2], 8, 2, torch.float32)
    assert layer.weight.dtype == torch.bfloat16


REAL = """
import json, os, sys
sys.path[:0] = {paths}
from nondet.backends.base import Request
from nondet.backends.vllm import VLLMBackend
from nondet.settings import setting_from

if __name__ == "__main__":
    options = {{"name": "vllm", "eager": True, "max_length": 128, "cache_gib": 1}}
    setting = setting_from({{"backend": options, "dtype": sys.argv[1], "threads": 1,
                            "max_new_tokens": 8, "batch_size": 2, "gpus": int(sys.argv[3])}})
    VLLMBackend.check(setting)
    os.environ.update(VLLMBackend.environment(setting))
    backend = VLLMBackend(setting, sys.argv[2])
    backend.start()
    wave = backend.generate([Request("0", (5, 6, 7, 8)), Request("1", (9, 10))])
    print(json.dumps({{"tokens": [r.tokens.tolist() for r in wave],
                      "logprobs": [r.logprobs.tolist() for r in wave],
                      "state": backend.observed().get("layercast")}}))
    backend.close()
"""


class TestRealVLLM:
    pytestmark = needs_vllm

    def test_answers_are_those_of_fp32(self, tmp_path: Path) -> None:
        folder = make_tiny_llama(
            tmp_path, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64
        )
        script = tmp_path / "real.py"
        script.write_text(REAL.format(paths=[str(ROOT), str(ROOT / "kernels")]))
        found = {}
        for dtype, gpus in (("layercast", 1), ("fp32", 1), ("layercast", 2)):
            done = subprocess.run(
                [str(PYTHON), str(script), dtype, str(folder), str(gpus)],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            said = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found[dtype, gpus] = json.loads(said[-1])
        truth = found.pop(("fp32", 1))
        for own in found.values():
            assert own["tokens"] == truth["tokens"]
            for a, b in zip(own["logprobs"], truth["logprobs"], strict=True):
                assert a == pytest.approx(b, abs=2e-5)
            assert own["state"]["holes"] == 0
            stored = own["state"]["stored_parameters"]
            assert stored["float32"] < 1e-2 * stored["bfloat16"]
