"""A study whose time is up names what is left, and only that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import together
from nondet.runs import SCHEMA_VERSION, write_json
from nondet.settings import Setting, setting_from


def test_a_run_that_is_there_is_no_gap_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(setting: Setting) -> SimpleNamespace:
        return SimpleNamespace(setting=setting, run_id=f"run-{setting.seed}")

    monkeypatch.setattr(together, "plan_run", planned)
    monkeypatch.setattr(together, "replace", lambda plan, **_: plan)
    monkeypatch.setattr(together, "execute", lambda *_: "skipped")
    (tmp_path / "runs" / "run-1").mkdir(parents=True)
    record = {"run_id": "run-1", "status": "complete", "schema_version": SCHEMA_VERSION}
    write_json(tmp_path / "runs" / "run-1" / "run.json", record)
    both = [setting_from({"seed": seed}) for seed in (1, 2)]
    found = together.run_all({tmp_path: both}, "test", seconds=1.0)[tmp_path]
    assert [one.status for one in found] == ["skipped", "not run"]
