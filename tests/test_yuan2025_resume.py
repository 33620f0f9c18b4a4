"""The command line on a toy engine: killed anywhere and run again, it ends with the same tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import toy

SCALE = """
about: a toy
models: {toy: {words: [model=endpoint, model.path=toy], parameters: 1.0e+6, kind: instruct}}
tasks: {things: {words: [task=jsonl, task.path=items.jsonl], items: 12}}
arms:
  drifting:
    roles: [greedy]
    sweep: yuan2025_mini
    set: {backend: toy, backend.drift: true, backend.pause: 0.2, dtype: bf16}
  steady: {roles: [greedy], sweep: yuan2025_mini, set: {backend: toy, dtype: fp32}}
  broken:
    roles: [larger_model]
    sweep: yuan2025_mini
    # With state between waves a killed run starts over, so that the fault strikes again.
    set:
      backend: stateful_toy
      backend.fault: error
      backend.fault_size: 4
      dtype: bf16
      batch_size: 4
  refused: {roles: [gpqa], sweep: yuan2025_mini, set: {backend: toy, threads: 0, dtype: bf16}}
"""


def words(*more: str) -> list[str]:
    search = f"hydra.searchpath=[file://{toy.PLUGIN}/configs]"
    return [sys.executable, "-m", "experiments.yuan2025", "run", "toy.yaml", *more, search]


def prepare(folder: Path) -> Path:
    folder.mkdir()
    toy.write_items(folder / "items.jsonl", 12)
    (folder / "toy.yaml").write_text(SCALE)
    return folder


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*more),
        cwd=folder,
        env=toy.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


def written(folder: Path) -> int:
    """Files of tokens under a study's runs; 0 where a run ends while they are counted."""
    runs = folder / "outputs" / "runs"
    try:
        return sum(
            len(list(runs.glob(pattern))) for pattern in ("*/*[0-9n]*.parquet", "*/parts/*.parquet")
        )
    except FileNotFoundError:  # its parts were joined and their folder removed
        return 0


def tables(folder: Path) -> dict[str, str]:
    """The tables of the report by file name."""
    place = folder / "outputs" / "yuan2025" / "toy" / "report" / "tables"
    return {path.name: path.read_text() for path in sorted(place.glob("*.csv"))}


@pytest.mark.slow  # some thirty processes
def test_killed_studies_end_with_the_same_tables(tmp_path: Path) -> None:
    whole, killed = prepare(tmp_path / "whole"), prepare(tmp_path / "killed")
    done = run(whole)
    assert done.returncode == 0, done.stderr
    assert "threads=0: must be a whole number of at least 1" in done.stdout
    assert "failed: RuntimeError: the toy broke" in done.stdout
    for parts in (1, 3):
        with (killed / "log").open("ab") as log:
            process = subprocess.Popen(
                words(),
                cwd=killed,
                env=toy.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 900
        while written(killed) < parts:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    again = run(killed)
    assert again.returncode == 0, again.stderr
    assert tables(killed) == tables(whole)
    # Nothing is left to do: all finished runs are skipped.
    third = run(killed)
    assert third.returncode == 0
    assert third.stderr.count("skipped, this run is already there") == 6
    assert tables(killed) == tables(whole)


@pytest.mark.slow  # some ten processes
def test_the_time_limit_names_what_is_left_and_the_next_call_goes_on(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "limited")
    done = run(folder, "--minutes", "0")
    assert done.returncode == 0, done.stderr
    assert "7 runs missing: not run: 0 minutes were up; the same command goes on" in done.stdout
    assert run(folder).returncode == 0
    assert "minutes were up" not in tables(folder)["cells.csv"]
