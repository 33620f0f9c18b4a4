"""run_all.sh with a program in Python's place: order, PYTHONPATH, what comes back."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "run_all.sh"
# Writes its words down, makes the file it is asked for, and has vLLM where PYTHONPATH has it.
STUB = """#!/bin/sh
echo "$PYTHONPATH | $*" >>"$TRACE"
case "$*" in
*peers*) case ":$PYTHONPATH:" in *:/somewhere/vllm:*) echo "vLLM 0.25.1 3" ;; esac ;;
*--warm*) ;;
*capture*) echo bits >"$3" ;;
*bench_model*) echo x >"$3/kernels_model.csv" ;;
*.csv*) echo x >"$2" ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    stub = tmp_path / "bin" / "python3"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    added = {"PATH": path, "TRACE": str(tmp_path / "trace"), "WORK": str(tmp_path / "work")}
    return {**os.environ, **added, "PYTHONPATH": "/somewhere/vllm"}


def run(machine: dict[str, str], *words: str) -> list[str]:
    """Calls of the stub, in order, after the script ended well."""
    done = subprocess.run(
        ["sh", str(SCRIPT), *words], env=machine, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(machine["TRACE"]).read_text().splitlines()


def test_everything_comes_back_in_one_file(machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    calls = run(machine, str(tmp_path / "out"), str(tmp_path / "model"))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["kernels.tar.gz"]
    with tarfile.open(tmp_path / "out" / "kernels.tar.gz") as archive:
        names = {Path(name).name for name in archive.getnames()}
    tables = ("attention", "attention_bits", "bits", "every_m", "matmul", "rows", "model")
    assert {f"kernels_{name}.csv" for name in tables} <= names
    assert "activations.pt" not in names
    assert all(call.split(" | ")[0].endswith(":/somewhere/vllm") for call in calls)
    assert "capture_activations" in calls[0]
    timed = [call for call in calls if "bench_" in call and "--warm" not in call]
    assert "kernels_matmul.csv 108" in timed[0], "with vLLM a bench has three times the seconds"
    assert calls[-4:] == timed, "timings come last, when nothing else runs"


def test_a_part_alone_and_without_vllm(machine: dict[str, str], tmp_path: Path) -> None:
    calls = run({**machine, "PYTHONPATH": ""}, str(tmp_path / "out"), "", "times")
    words = " ".join(calls)
    assert "check_" not in words
    assert "bench_model" not in words
    assert "kernels_matmul.csv 36" in words
    assert (tmp_path / "out" / "kernels.tar.gz").stat().st_size
