"""Kill -9 of the worker or the parent, at any moment: nothing lost, nothing twice."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import toy
from processes import LONG_S, wait_for

from nondet.study import load_study

KILLS = 24
WORDS = ("batch_size=1,3", "repeats=1", "backend.pause=0.04", "backend.drift=true", "report=false")


def rows(folder: Path) -> list[list[dict[str, object]]]:
    """Rows of every run of the newest study, without the wave, which is how, not what."""
    study = load_study([folder / "outputs" / "latest"])
    assert [run.status for run in study.runs] == ["complete"] * 3
    return [run.table().drop_columns(["wave"]).to_pylist() for run in study.runs]


@pytest.mark.slow
def test_killed_studies_end_as_undisturbed_ones(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        toy.write_items(folder / "items.jsonl", 120)
    log = [f"backend.log={tmp_path}/waves", "-m"]
    rng = random.Random(7)
    hits = {"worker": 0, "parent": 0}
    for number in range(KILLS):
        process = toy.start(killed, *WORDS, *log)
        victim = ("worker", "parent")[number % 2]
        hits[victim] += _kill(process.pid, victim, rng.uniform(0.0, 1.2))
        if victim == "worker":
            process.kill()
        process.wait()
        _no_worker_left(killed)
    assert min(hits.values()) >= KILLS // 3, hits
    done = toy.run(killed, *WORDS, *log)
    assert done.returncode == 0, done.stderr
    generated = (tmp_path / "waves").read_text().split()
    assert toy.run(whole, *WORDS, f"backend.log={tmp_path}/other", "-m").returncode == 0
    assert rows(killed) == rows(whole)
    # 120 items, three runs; a kill loses at most the wave in hand (three items).
    assert 360 <= len(generated) <= 360 + 3 * KILLS
    for run in load_study([killed / "outputs" / "latest"]).runs:
        names = sorted(path.name for path in run.folder.iterdir())
        assert names == ["run.json", "tokens.parquet"]


def _kill(pid: int, victim: str, delay: float) -> int:
    """Kill the parent, or the worker once it is there, after ``delay``; 1 if something was hit."""
    parent = psutil.Process(pid)
    until = time.monotonic() + LONG_S
    while time.monotonic() < until and parent.is_running():
        if parent.status() == psutil.STATUS_ZOMBIE:
            return 0
        workers = [child for child in parent.children() if _is_worker(child)]
        if workers:
            time.sleep(delay)
            target = workers[0] if victim == "worker" else parent
            try:
                target.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                return 0
            if victim == "worker":
                time.sleep(0.3)  # the parent records the failure and goes on
            return 1
        time.sleep(0.02)
    return 0


def _is_worker(process: psutil.Process) -> bool:
    """Whether this is a worker that still runs; one may end while it is looked at."""
    try:
        return "nondet.worker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie too
        return False


def _no_worker_left(folder: Path) -> None:
    """A worker whose parent is gone ends by itself."""

    def alive() -> list[psutil.Process]:
        return [
            p
            for p in psutil.process_iter(["cmdline", "status"])
            if str(folder) in " ".join(p.info["cmdline"] or [])
            and "nondet.worker" in " ".join(p.info["cmdline"] or [])
            and p.info["status"] != psutil.STATUS_ZOMBIE
        ]

    wait_for(lambda: not alive())


@pytest.mark.slow
def test_an_engine_with_state_starts_a_killed_run_over(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 30)
    words = ["backend=stateful_toy", "batch_size=1", "backend.pause=0.2", "report=false"]
    process = toy.start(tmp_path, *words)
    # Three of thirty waves are done: the rest takes five seconds.
    wait_for(lambda: len(list(tmp_path.glob("outputs/runs/*/parts/[0-9]*"))) >= 3)
    assert _kill(process.pid, "parent", 0.0)
    process.wait()
    done = toy.run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "already there" not in done.stderr.splitlines()[0]
    run = load_study([tmp_path / "outputs" / "latest"]).runs[0]
    assert run.table().num_rows == 30
    assert len(run.record["resumed_at"]) == 1
