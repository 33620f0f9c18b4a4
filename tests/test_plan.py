"""The plan of a run: what its id depends on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nondet.models import context_length
from nondet.plan import Plan, plan_run
from nondet.settings import SettingError, setting_from


def plan(tiny: Path, prompts: Path, **changes: Any) -> Plan:
    values = {
        "model": {"name": "local", "path": str(tiny)},
        "task": {"name": "jsonl", "path": str(prompts)},
        **changes,
    }
    return plan_run(setting_from(values))


@pytest.mark.parametrize(
    ("name", "value", "moves"),
    [
        ("ATEN_CPU_CAPABILITY", "default", True),
        ("MKL_CBWR", "COMPATIBLE", True),
        ("NVIDIA_TF32_OVERRIDE", "1", True),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", True),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1", True),
        ("VLLM_KV_CACHE_LAYOUT", "HND", True),
        ("DISABLE_ADDMM_CUDA_LT", "1", True),
        ("TRANSFORMERS_SDPA_FORCE_GQA", "1", True),
        ("LD_PRELOAD", "", True),
        # The factor threads decides.
        ("OMP_NUM_THREADS", "7", False),
        ("TORCH_LOGS", "recompiles", False),
        ("TRITON_CACHE_DIR", "somewhere", False),
        ("VLLM_LOGGING_LEVEL", "DEBUG", False),
        ("VLLM_CACHE_ROOT", "somewhere", False),
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0", False),
        ("VLLM_API_KEY", "secret", False),
    ],
)
def test_variables_that_move_bits_are_in_the_id(
    tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, moves: bool
) -> None:
    monkeypatch.delenv(name, raising=False)
    without = plan(tiny, prompts).run_id
    monkeypatch.setenv(name, value)
    assert (plan(tiny, prompts).run_id != without) == moves


@pytest.mark.parametrize("python", ["/bin/false", "/bin/true", "/etc/passwd"])
def test_an_interpreter_that_does_not_start_is_a_mistake(
    tiny: Path, prompts: Path, python: str
) -> None:
    with pytest.raises(SettingError, match=f"backend.python={python}: must be an interpreter"):
        plan(tiny, prompts, backend={"name": "hf", "python": python})


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"backend": {"name": "hf", "cache": "static", "cuda_graph": True}}, "backend.cuda_graph"),
        ({"dtype": "layercast", "backend": {"name": "hf", "product": "fused"}}, "backend.product"),
        ({"attention": "flash_attention_2"}, "attention"),
    ],
)
def test_what_needs_a_gpu_is_refused_on_a_cpu(
    tiny: Path, prompts: Path, values: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingError) as caught:
        plan(tiny, prompts, device="cpu", **values)
    assert caught.value.key == key


@pytest.mark.parametrize("text", ['{"a":', "[]"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_model_whose_files_are_no_json_objects_is_a_mistake(
    tiny: Path, prompts: Path, tmp_path: Path, name: str, text: str
) -> None:
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingError, match=f"{name}: must be a JSON"):
        plan(tmp_path, prompts)


def test_a_revision_of_a_folder_is_refused_and_not_ignored(tiny: Path, prompts: Path) -> None:
    with pytest.raises(SettingError, match="revision=abc: must be left out"):
        plan(tiny, prompts, model={"name": "local", "path": str(tiny), "revision": "abc"})


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"n_positions": 64}, 64),
        ({"max_position_embeddings": 32, "text_config": None}, 32),
        ({"text_config": {"max_position_embeddings": 16}}, 16),
        ({}, None),
    ],
)
def test_the_context_by_its_names(
    tmp_path: Path, config: dict[str, Any], length: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_length(tmp_path) == length


def test_a_longer_time_limit_is_the_same_run(tiny: Path, prompts: Path) -> None:
    def made(**options: Any) -> Plan:
        backend = {"name": "openai", "url": "http://127.0.0.1:1/v1", **options}
        return plan(tiny, prompts, backend=backend)

    one, other = made(), made(wave_timeout_s=7200, request_timeout_s=900, retries=9)
    assert one.run_id == other.run_id
    assert one.setting.factors() == other.setting.factors()
    assert other.setting.backend.options["wave_timeout_s"] == 7200
    assert made(api="chat").run_id != one.run_id


def test_another_release_of_a_served_engine_is_another_run(
    tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nondet.backends import openai

    ids = set()
    for release in ("0.30.0", "0.30.1"):
        found = {"vllm": release}
        monkeypatch.setattr(openai, "engine_versions", lambda options, found=found: found)
        ids.add(plan(tiny, prompts, backend={"name": "openai", "serve": "vllm"}).run_id)
    assert len(ids) == 2


def test_a_served_engine_whose_interpreter_cannot_tell_is_refused(
    tiny: Path, prompts: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    served = {"name": "openai", "serve": "vllm", "serve_python": str(python)}
    with pytest.raises(SettingError, match=r"^backend\.serve_python=.*does not start"):
        plan(tiny, prompts, backend=served)


def test_another_flash_attention_is_another_run(
    tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    from nondet.environment import versions_in

    known, ids = importlib.metadata.version, set()
    for installed in ("2.7.0", "2.8.3"):

        def version(name: str, installed: str = installed) -> str:
            return installed if name == "flash-attn" else known(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        versions_in.cache_clear()
        ids.add(plan(tiny, prompts).run_id)
    versions_in.cache_clear()
    assert len(ids) == 2
