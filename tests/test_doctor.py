"""The doctor: what is read back, and which state draws which warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nondet import doctor
from nondet.advice import advise, nccl_algo_fits
from nondet.backends.candidates import RAW_LOGPROBS
from nondet.backends.overrides import in_force, replaced_operations
from nondet.settings import SettingError, setting_from

CLEAN: dict[str, Any] = {
    "engine": "vllm 0.33.0",
    "logprobs_mode": RAW_LOGPROBS,
    "kernels": "invariant",
    "prefix_caching": False,
    "chunked_prefill": True,
    "chunk_tokens": 8192,
    "max_length": 1024,
    "together": 8,
    "kv_cache_dtype": "auto",
    "cuda_graph": "none",
    "compile_level": 0,
    "workers": [{"gpu": "a GPU", "replaced_operations": {"mm": "layers/batch_invariant.py"}}],
}


def warnings(observed: dict[str, Any] | None = None, **factors: Any) -> list[str]:
    """First lines of the warnings for a state that is clean but for ``observed``."""
    values = {"kernels": "invariant", "batch_size": 8, "threads": 2, **factors}
    found = advise(setting_from(values), {**CLEAN, **(observed or {})})
    assert all(one.reason and one.cure for one in found)
    return [one.setting for one in found]


def test_a_clean_state_draws_no_warning() -> None:
    assert warnings() == []


@pytest.mark.parametrize(
    ("observed", "factors", "word"),
    [
        ({"kernels": "default"}, {}, "not in force"),
        ({"kernels": "default"}, {"kernels": "default"}, "kernels=default with batch_size=8"),
        ({"prefix_caching": True}, {}, "prefix_caching=true"),
        ({"chunk_tokens": 512}, {}, "chunk_tokens=512"),
        ({"kv_cache_dtype": "fp8_e5m2"}, {}, "kv_cache_dtype=fp8"),
        ({"quantization": "fp8"}, {}, "quantization=fp8"),
        ({"invariant": {"uncovered": ["attention with sinks"]}}, {}, "attention with sinks"),
        ({"engine": "vllm 0.25.1"}, {}, "vllm 0.25.1"),
        ({"logprobs_mode": "endpoint's own"}, {}, "logprobs_mode"),
        ({}, {"gpus": 2}, "gpus=2"),
        (
            {"kernels": "default", "device": "cuda", "sdpa_backends": {"cudnn": True}},
            {"kernels": "default", "batch_size": 1},
            "attention=sdpa with dtype=bf16",
        ),
        ({}, {"tf32": True}, "tf32=true"),
        (
            {"workers": [{"gpu": "a GPU", "bf16_reduced_precision": "True"}]},
            {},
            "reduced_precision=true",
        ),
        ({"workers": [{"threads": 2}]}, {"threads": None}, "threads=null"),
        (
            {"workers": [{"gpu": "a", "replaced_operations": {"mm": "a.py", "bmm": "b.py"}}]},
            {},
            "a.py and b.py",
        ),
        (
            {"kernels": "default", "cuda_graph": "full"},
            {"kernels": "default", "batch_size": 1},
            "cuda_graph=full",
        ),
        (
            {"kernels": "default", "compile_level": 3},
            {"kernels": "default", "batch_size": 1},
            "compile_level=3",
        ),
        (
            {"kernels": "default", "cascade_attention": True},
            {"kernels": "default", "batch_size": 1},
            "cascade",
        ),
        (
            {"engine": "sglang 0.5.23", "kernels": "default"},
            {"kernels": "default", "batch_size": 1, "temperature": 0.5},
            "temperature=0.5",
        ),
    ],
)
def test_each_state_draws_its_warning_and_no_other(
    observed: dict[str, Any], factors: dict[str, Any], word: str
) -> None:
    found = warnings(observed, **factors)
    assert len(found) == 1, found
    assert word in found[0]


def test_attention_that_cudnn_cannot_take_draws_no_warning() -> None:
    on = {"kernels": "default", "device": "cuda", "sdpa_backends": {"cudnn": True}}
    off = {**on, "sdpa_backends": {"cudnn": False}}
    one = {"kernels": "default", "batch_size": 1}
    assert warnings(on, **one, dtype="fp32") == []
    assert warnings(on, **one, attention="eager") == []
    assert warnings(off, **one) == []
    assert warnings({**on, "device": "cpu"}, **one) == []


def test_an_endpoint_is_told_what_it_does_not_give() -> None:
    state = {
        "engine": "endpoint",
        "token_ids": "bytes",
        "logprobs": False,
        "system_fingerprints": {"a": 3, "b": 1},
    }
    found = warnings(state)
    for word in ("arrival", "token_ids=bytes", "no log-probabilities", "system_fingerprint"):
        assert [one for one in found if word in one], word


@pytest.mark.parametrize(
    ("algo", "version", "fits"),
    [
        ("allreduce:tree", "2.30.4", True),
        ("allreduce:tree", "2.31.0", False),
        ("ring,tree;allreduce:tree", "2.31.0", True),
        ("ring", "2.32", True),
        ("", "2.32", True),
        ("allreduce:tree", "3.0", False),
    ],
)
def test_nccl_algo_against_its_version(algo: str, version: str, fits: bool) -> None:
    assert nccl_algo_fits(algo, version) is fits
    workers = [{"gpu": "a", "nccl": version, "switches": {"NCCL_ALGO": algo}}]
    found = [w for w in warnings({"workers": workers}, gpus=2) if "NCCL_ALGO" in w]
    assert bool(found) is not fits


def test_a_kernel_registered_from_python_is_seen_and_gone_again() -> None:
    assert replaced_operations("CPU") == {}
    library = torch.library.Library("aten", "IMPL")
    library.impl("bmm", lambda a, b: a, "CPU")
    try:
        assert list(replaced_operations("CPU")) == ["bmm"]
        assert replaced_operations("CPU")["bmm"].endswith("test_doctor.py")
    finally:
        library._destroy()
    assert replaced_operations("CPU") == {}


def test_the_state_of_a_process_names_its_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "ring")
    state = in_force()
    assert state["switches"]["NCCL_ALGO"] == "ring"
    assert state["torch"] == torch.__version__


def test_a_mistake_in_the_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["batch_size=0"], ["backend=nothing"], ["no_such_key=1"],
                  ["backend=vllm", "kernels=tp_invariant"]):  # fmt: skip
        assert doctor.main(words) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("nondet: ")


def test_a_missing_environment_names_the_make_target(tmp_path: Path) -> None:
    setting = setting_from({"backend": {"name": "vllm", "python": str(tmp_path / "none")}})
    with pytest.raises(SettingError, match="make venv-vllm"):
        doctor.probe(setting, "folder")


def test_an_engine_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    setting = setting_from({"backend": {"name": "hf"}})
    with pytest.raises(doctor.ProbeError, match="ended with 1; log: "):
        doctor.probe(setting, str(tmp_path / "no_model"))


def test_the_page_of_a_real_engine(tiny: Path) -> None:
    setting = setting_from({"backend": {"name": "hf"}, "threads": 1})
    found = doctor.probe(setting, str(tiny))
    page = doctor.show(found, advise(setting, found["observed"]))
    assert "logprobs_mode" in page
    assert "1. kernels=default with batch_size=4" in page
    assert "cure: kernels=invariant" in page
    assert "torch " in page
