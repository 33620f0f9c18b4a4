"""The plan of a run: what its id depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
        # The factor threads decides.
        ("OMP_NUM_THREADS", "7", False),
        ("TORCH_LOGS", "recompiles", False),
        ("TRITON_CACHE_DIR", "somewhere", False),
        ("VLLM_LOGGING_LEVEL", "DEBUG", False),
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
