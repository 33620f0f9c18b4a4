"""Hydra's launchers for clusters: submitit (local executor) and Ray on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy

from nondet.study import load_study

pytestmark = pytest.mark.slow
# Ray's own limits on a busy machine: seconds for its parts to come up, and no job is ended because
# somebody else has the memory.
PATIENT = {
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.mark.parametrize("launcher", ["submitit_local", "ray"])
def test_a_study_through_a_launcher(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    toy.write_items(tmp_path / "items.jsonl", 6)
    words = [f"+launcher={launcher}", "batch_size=1,2", "repeats=1", "-m"]
    done = toy.run(tmp_path, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    study = load_study([tmp_path / "outputs" / "latest"])
    found = [(run.factors["batch_size"], run.repeat, run.status) for run in study.runs]
    assert found == [(1, 0, "complete"), (1, 1, "complete"), (2, 0, "complete")]
    assert (tmp_path / "outputs" / "latest" / "report" / "index.html").exists()


def test_one_setting_goes_through_its_launcher_too(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    toy.write_items(tmp_path / "items.jsonl", 3)
    done = toy.run(tmp_path, "+launcher=submitit_local", "report=false")
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "outputs" / "latest" / "submitit").iterdir())
