"""The scripts for a machine with a GPU, with a program in Python's place: what comes back."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from processes import wait_for

from nondet.backends.limits import descendants, end_all

ROOT = Path(__file__).parent.parent
REST = ROOT / "experiments" / "gpu_rest.sh"
POSTS, PRECISION = ROOT / "experiments" / "gpu_posts.sh", ROOT / "experiments/precision/gpu.sh"
# Writes its words down and a file into the folder, or under the name, that it is given.
STUB = """#!/bin/sh
echo "$PYTHONPATH | $*" >>"$TRACE"
case " $* " in *" $HANGS "*) exec sleep 600 ;; esac
[ "$1" = -m ] && shift
case "$1" in
*.table | *mixed_table*) ;;
*.price) mkdir -p "$(dirname "$2")" && echo x >"$2" ;;
*.logits) echo x >"$3" ;;
*speed.py) echo x >"$3" ;;
*check_mixed.py) echo x >"$2" ;;
*bench_mixed.py) mkdir -p "$2" && echo x >"$2/kernels_mixed.csv" ;;
*precision.study)
  mkdir -p "$2/study" "$2/probe"
  echo x | tee "$2/probe/y" >"$2/study/study.json" ;;
*) mkdir -p "$2" && echo x >"$2/made" ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    stub = tmp_path / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    (tmp_path / "models").mkdir()
    added = {"PYTHON": str(stub), "TRACE": str(tmp_path / "trace"), "HANGS": "nothing"}
    return {**os.environ, **added, "WORK": str(tmp_path / "work"), "PYTHONPATH": "/some/vllm"}


def run(machine: dict[str, str], script: Path, *words: str) -> list[str]:
    """Calls of the stub; the script is started from the folder of the test."""
    command = ["bash", str(script), *words]
    folder = Path(machine["TRACE"]).parent
    done = subprocess.run(
        command, env=machine, cwd=folder, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return Path(machine["TRACE"]).read_text().splitlines()


def packed(path: Path) -> set[str]:
    with tarfile.open(path) as archive:
        return {name.removeprefix("./") for name in archive.getnames()}


def test_the_posts_come_back_and_models_are_found_from_where_one_stands(
    machine: dict[str, str], tmp_path: Path
) -> None:
    calls = run(machine, POSTS, "out", "models", "models")
    names = ["posts-large.tar.gz", "posts.log", "posts.tar.gz"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    found = packed(tmp_path / "out" / "posts.tar.gz")
    assert {"floating_point/made", "batch_size/made", "tml2025/made", "price/price.csv"} <= found
    assert {"floating_point.log", "price.log"} <= found
    assert "large/made" in packed(tmp_path / "out" / "posts-large.tar.gz")
    studies = [call for call in calls if ".study" in call or "price" in call]
    assert studies
    assert all(f" {tmp_path}/models " in call for call in studies)
    assert all(call.split(" | ")[0] == ".:kernels:/some/vllm" for call in calls)


def test_an_empty_model_stays_the_default_one(machine: dict[str, str]) -> None:
    calls = run(machine, POSTS, "out", "", "", "completions")
    assert any("tml2025.study" in call and "tml2025  gpu hf" in call for call in calls)


def test_what_was_made_before_a_call_is_ended_has_come_back(
    machine: dict[str, str], tmp_path: Path
) -> None:
    hanging = {**machine, "HANGS": "experiments.tml2025.price", "LIMIT": "600"}
    command = ["bash", str(POSTS), "out", "", "", "float", "price"]
    process = subprocess.Popen(
        command, env=hanging, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        # The call that hangs writes itself down first, and what came before it is packed by then.
        trace = tmp_path / "trace"
        wait_for(lambda: trace.exists() and f"{hanging['HANGS']} " in trace.read_text())
        assert "floating_point/made" in packed(tmp_path / "out" / "posts.tar.gz")
        assert process.poll() is None
    finally:
        end_all([process.pid, *descendants(process.pid)])
        process.wait()


def test_number_formats_come_back_as_one_file(machine: dict[str, str], tmp_path: Path) -> None:
    calls = run(machine, PRECISION, "out", "models")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precision.tar.gz"]
    found = packed(tmp_path / "out" / "precision.tar.gz")
    made = {"kernels_mixed_bits.csv", "kernels_mixed.csv", "logits.csv", "speed.csv"}
    assert {*made, "study/study.json", "study.log", "speed.log"} <= found
    assert not [name for name in found if name.startswith("probe")]
    assert any(f"experiments.precision.study {machine['WORK']} {tmp_path}/models " in c
               for c in calls)  # fmt: skip


@pytest.mark.parametrize("gpus", [1, 2])
def test_what_is_left_is_asked_of_the_gpus_there_are(
    machine: dict[str, str], tmp_path: Path, gpus: int
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    listed = "\n".join(f"echo 'GPU {number}'" for number in range(gpus))
    control = f'echo "mps $*" >>"{machine["TRACE"]}"; [ "$1" = -d ] || cat >/dev/null'
    for name, script in (("nvidia-smi", listed), ("nvidia-cuda-mps-control", control)):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    there = {**machine, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON_SGLANG": "there"}
    calls = run(there, REST, "out", "models", "models", "items", "60")
    (cells,) = [call for call in calls if "yuan2025.h200" in call]
    assert ("gpus=1" in cells) == (gpus == 1)
    asked = [call for call in calls if ".study" in call or ".price" in call]
    assert [call.split(" gpu ")[1].split()[0] for call in asked[:2]] == ["vllm", "sglang"]
    assert {call.split("price.csv ")[1].split()[0] for call in asked[2:]} == {"vllm", "hf"}
    # Nothing is timed before the multi-process service has ended.
    ended = max(place for place, call in enumerate(calls) if call.startswith("mps"))
    assert all(calls.index(call) > ended for call in asked[2:])
    said = (tmp_path / "out" / "said").read_text()
    assert f"{gpus} GPUs" in said
    assert said.count("exit code 0") == 5
    for name in ("completions-vllm", "completions-sglang", "price-vllm", "price-hf"):
        assert packed(tmp_path / "out" / name / "out" / "posts.tar.gz")
