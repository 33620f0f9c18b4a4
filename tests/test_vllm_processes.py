"""What each process of vLLM is told: switches that torch keeps a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_backend_vllm import PYTHON, ROOT, setting
from tiny_llama import make_tiny_llama

from nondet.backends.vllm import VLLMBackend, engine_arguments
from nondet.backends.vllm_observed import switches


def test_tf32_is_a_variable_because_each_worker_sets_it_itself() -> None:
    for tf32, word in ((True, "high"), (False, "highest")):
        variables = VLLMBackend.environment(setting(tf32=tf32))
        assert variables["VLLM_FLOAT32_MATMUL_PRECISION"] == word


@pytest.mark.parametrize("reduced", [True, False])
def test_every_process_of_vllm_sets_reduced_precision(reduced: bool) -> None:
    """In a fresh process, as vLLM's workers are: import what it is told to, then look."""
    asked = setting(reduced_precision=reduced)
    named = engine_arguments(asked, "folder", VLLMBackend(asked, "folder").options)
    module, _, name = named["worker_extension_cls"].rpartition(".")
    code = f"""
import importlib, torch
matmul = torch.backends.cuda.matmul
matmul.allow_bf16_reduced_precision_reduction = {not reduced}
matmul.allow_fp16_reduced_precision_reduction = {not reduced}
extension = getattr(importlib.import_module({module!r}), {name!r})
assert not [key for key in dir(extension) if not key.startswith("__")], "vLLM refuses doubles"
print(matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction)
"""
    variables = {**os.environ, **VLLMBackend.environment(asked), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(reduced)] * 2, done.stderr


def test_switches_in_force_are_those_of_all_processes() -> None:
    worker = {"fp32_precision": "tf32", "bf16_reduced_precision": "False",
              "fp16_reduced_precision": "(False, False)"}  # fmt: skip
    assert switches([worker]) == {"tf32": True, "reduced_precision": False}
    other = {**worker, "fp32_precision": "ieee", "fp16_reduced_precision": "(True, True)"}
    assert switches([worker, other]) == {"tf32": "differs", "reduced_precision": "differs"}


REAL = """
import json, os, sys
sys.path[:0] = {paths}
from nondet.backends.base import Request
from nondet.backends.vllm import VLLMBackend
from nondet.settings import setting_from

if __name__ == "__main__":
    options = {{"name": "vllm", "eager": True, "max_length": 64}}
    values = {{"backend": options, "batch_size": 3, "max_new_tokens": 12, "threads": 1, "gpus": 2}}
    setting = setting_from({{**values, "tf32": True, "reduced_precision": False}})
    os.environ.update(VLLMBackend.environment(setting))
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    backend = VLLMBackend(setting, {model!r})
    backend.start()
    wave = [Request(str(n), tuple(x % 250 for x in range(n))) for n in (20, 64, 58)]
    found = [(r.finish_reason, len(r.tokens), r.note) for r in backend.generate(wave)]
    seen = backend.observed()
    backend.close()
    kept = {{key: seen[key] for key in ("tf32", "reduced_precision")}}
    pids = [worker["pid"] for worker in seen["workers"]]
    print("RESULT " + json.dumps([found, kept, len({{os.getpid(), *pids}})]))
"""


@pytest.mark.vllm
@pytest.mark.skipif(not PYTHON.is_file(), reason="needs .venv-vllm (`make venv-vllm`)")
def test_spawned_processes_have_what_was_asked_and_length_is_an_error(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
    model = make_tiny_llama(tmp_path, num_hidden_layers=2, **heads)
    script = tmp_path / "probe.py"
    script.write_text(REAL.format(paths=[str(ROOT)], model=str(model)))
    done = subprocess.run(
        [str(PYTHON), str(script)], capture_output=True, text=True, timeout=600, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-2000:]
    found, kept, processes = json.loads(lines[0].removeprefix("RESULT "))
    assert kept == {"tf32": True, "reduced_precision": False}
    assert processes == 3
    long = "prompt of 64 tokens: this engine takes fewer than 64"
    cut = "cut by the engine after 6 of 12 tokens"
    assert found == [["length", 12, ""], ["error", 0, long], ["error", 6, cut]]
