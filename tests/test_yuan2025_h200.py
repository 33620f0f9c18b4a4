"""The driver for machines without Hydra, on a CPU with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.together import Outcome
from experiments.yuan2025 import carried, h200
from experiments.yuan2025.matrix import load_scale
from nondet.runs import read_run
from nondet.settings import Setting
from tests.tiny_llama import make_tiny_llama

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results/measured/h200/yuan2025"
SCALE = """
about: a test
models: {tiny: {words: [model=local, model.path=MODEL]}}
tasks: {recall: {words: [task=recall, task.limit=3, max_new_tokens=4]}}
arms:
  greedy: {roles: [greedy], sweep: yuan2025_mini, set: {dtype: fp32, batch_size: "2,3"}}
  refused: {roles: [greedy], sweep: yuan2025_mini, set: {dtype: fp32, batch_size: 2, attention: no}}
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two cells that run and one that cannot."""
    folder = tmp_path_factory.mktemp("h200")
    (folder / "tiny.yaml").write_text(SCALE)
    model = make_tiny_llama(folder / "model", max_position_embeddings=4096)
    words = [f"scale={folder}/tiny.yaml"]
    for step in (["items", "items"], [str(model), "items", "out", "900", "2", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "experiments.yuan2025.h200", *words, *step],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "NONDET_CACHE": str(folder / "cache")},
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return folder / "out"


def said(out: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((out / "cells.json").read_text())["cells"]
    return {name.split(" | ")[0] + name[-2:]: what for name, what in found.items()}


@pytest.mark.slow  # two engine starts
def test_every_cell_says_what_became_of_it(out: Path) -> None:
    cells = said(out)
    assert set(cells) == {"greedy=2", "greedy=3", "refused=2"}
    assert "attention=False: must be one of" in cells["refused=2"]["reason"]
    for name in ("greedy=2", "greedy=3"):
        assert "reason" not in cells[name]
        assert read_run(out / "runs" / cells[name]["run"]).status == "complete"


@pytest.mark.slow  # two engine starts
def test_prompts_travel_without_answers_and_runs_are_marked_here(out: Path) -> None:
    lines = [json.loads(line) for line in (out.parent / "items/recall.jsonl").open()]
    assert [set(line) for line in lines] == [{"id", "prompt"}] * 3
    folder = out / "runs" / said(out)["greedy=2"]["run"]
    before = read_run(folder)
    assert before.factors["task"] == "jsonl"
    assert before.table(["correct"])["correct"].null_count == 3
    carried.adopt(out, load_scale(str(out.parent / "tiny.yaml")))
    after = read_run(folder)
    assert (after.factors["task"], after.factors["model"]) == ("recall", "tiny")
    assert after.table(["correct"])["correct"].null_count == 0
    assert after.table(["tokens"]) == before.table(["tokens"])
    assert str(out) not in json.dumps({k: after.record[k] for k in ("requested", "factors")})


@pytest.mark.slow  # two engine starts
def test_other_prompts_are_not_adopted(out: Path) -> None:
    task = carried.real_task(load_scale(str(out.parent / "tiny.yaml")).cells[0])
    fewer = type(task)(task.name, task.items[:2], task.marker)
    with pytest.raises(ValueError, match="must be the one whose prompts"):
        carried._check_prompts("another", fewer, out)


@pytest.mark.slow  # two engine starts
def test_no_run_is_begun_when_the_time_is_up(out: Path, tmp_path: Path) -> None:
    scale = load_scale(str(out.parent / "tiny.yaml"))
    model, items = str(out.parent / "model"), out.parent / "items"
    h200.drive(scale, model, items, tmp_path, 0.0, {1: 1, 2: 1})
    cells = said(tmp_path)
    assert cells["greedy=2"] == cells["greedy=3"] == {"reason": "not run: the time was up"}
    assert not (tmp_path / "runs").exists()


def test_the_scale_has_all_cells() -> None:
    cells = load_scale("h200").cells
    assert len(cells) == 115
    assert {cell.values.get("gpus", 1) for cell in cells} == {1, 2}


def test_finished_cells_of_an_earlier_machine_are_kept_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = load_scale("h200")
    before = json.loads((RESULTS / "cells.json").read_text())["cells"]
    # Some cells of each kind are left to run, whatever has been finished since.
    for cell in scale.cells[::3]:
        before[cell.name] = {"reason": "not run: the time was up"}
    (tmp_path / "before.json").write_text(json.dumps({"cells": before}))
    finished = {name for name, what in before.items() if "reason" not in what}
    asked: list[Setting] = []

    def run_none(
        studies: dict[Path, list[Setting]], name: str, together: dict[int, int], seconds: float
    ) -> dict[Path, list[Outcome]]:
        (folder,) = studies
        asked.extend(studies[folder])
        assert together == {1: 5}
        return {folder: [Outcome("complete", run_id="new") for _ in studies[folder]]}

    monkeypatch.setattr(h200, "run_all", run_none)
    monkeypatch.setattr(h200, "SWITCHES", {})  # of the process, and other tests share it
    done = f"done={tmp_path / 'before.json'}"
    h200.main(["model", str(tmp_path / "items"), str(tmp_path), "9", "5", done, "gpus=1"])
    cells = json.loads((tmp_path / "cells.json").read_text())["cells"]
    assert {setting.gpus for setting in asked} == {1}
    single = {cell.name for cell in scale.cells if cell.setting().gpus == 1}
    assert len(asked) == len(single - finished) > 0
    assert all(cells[name] == before[name] for name in finished)
    assert all(cells[name]["run"] == "new" for name in single - finished)
    assert all("reason" in cells[cell.name] for cell in scale.cells
               if cell.name not in single | finished)  # fmt: skip
