"""Studies on machines without Hydra and without an installed nondet."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest
from processes import wait_for

from experiments import together
from nondet.plan import Plan, plan_run
from nondet.settings import Setting, setting_from
from nondet.study import load_study


def test_a_checkout_that_is_not_installed_knows_its_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "entry_points", lambda group: ())
    monkeypatch.setattr(sys, "path", list(sys.path))
    together.announce()
    (found,) = distributions(path=[sys.path[-1]])
    named = {entry.name: entry for entry in found.entry_points}
    assert {"hf", "vllm", "sglang", "openai"} <= set(named)
    assert named["hf"].load().name == "hf"


@pytest.mark.slow
def test_studies_run_resume_and_count_what_fails(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {
        "model": {"name": "local", "path": str(tiny)},
        "task": {"name": "completions", "copies": 3},
        "batching": "varied",
        "batch_size": 2,
        "max_new_tokens": 2,
        "dtype": "fp32",
        "threads": 1,
    }
    good = setting_from(base)
    late = setting_from({**base, "timeout_s": 0.01, "seed": 1})
    bad = setting_from({**base, "gpus": 9})
    studies = {tmp_path / "one": [good], tmp_path / "two": [late, bad]}
    found = together.run_all(studies, "test", 2)
    statuses = [one.status for own in found.values() for one in own]
    assert statuses == ["complete", "failed", "refused"]
    assert together.failures(found) == 2
    said = capsys.readouterr().out
    assert "cannot run, gpus=9" in said
    assert "time limit" in said
    (run,) = load_study([tmp_path / "one"]).complete
    assert run.table().num_rows == 3
    assert len(json.loads((tmp_path / "two" / "study.json").read_text())["runs"]) == 1
    again = together.run_all({tmp_path / "one": [good]}, "test")
    assert together.failures(again) == 0
    assert "skipped" in capsys.readouterr().out


def test_seats_are_neighbouring_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(together, "gpu_names", lambda: ())
    assert together.seats(1) == [None]
    monkeypatch.setattr(together, "gpu_names", lambda: ("a", "b", "c", "d"))
    assert together.seats(1) == ["0", "1", "2", "3"]
    assert together.seats(2) == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,2,7,1")
    assert together.seats(2) == ["6,2", "7,1"]


def test_every_run_sees_its_own_gpus_and_the_seat_is_shared_by_so_many(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a GPU: what a worker would be told, and how many share a seat at a time.
    lock, now, most = threading.Lock(), Counter[str](), Counter[str]()
    order: list[int] = []
    shared = {1: 3, 2: 1}

    def seen(plan: Plan, store: Path, display: object, label: str, extra: dict[str, str]) -> str:
        seat = extra["CUDA_VISIBLE_DEVICES"]
        with lock:
            now[seat] += 1
            most[seat] = max(most[seat], now[seat])
            order.append(plan.setting.gpus)
        # As long as it takes to be as many as may be, and a moment to be more.
        wait_for(lambda: most[seat] >= shared[plan.setting.gpus])
        time.sleep(0.05)
        with lock:
            now[seat] -= 1
        return "complete"

    def planned(setting: Setting) -> Plan:
        # What a machine with two GPUs would plan.
        plan = plan_run(replace(setting, gpus=1))
        return replace(plan, setting=setting, run_id=f"{setting.gpus}-{setting.seed}")

    monkeypatch.setattr(together, "gpu_names", lambda: ("a", "b"))
    monkeypatch.setattr(together, "execute", seen)
    monkeypatch.setattr(together, "plan_run", planned)
    base = {
        "model": {"name": "local", "path": str(tiny)},
        "task": {"name": "recall", "limit": 1},
        "threads": 1,
    }
    chosen = [setting_from({**base, "gpus": g, "seed": n}) for n in range(8) for g in (2, 1)]
    together.run_all({tmp_path: chosen}, "test", shared)
    assert most == {"0": 3, "1": 3, "0,1": 1}
    assert order == sorted(order)
