"""Runs of a further machine beside those that are there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.yuan2025.carried import setting_there
from experiments.yuan2025.join import join
from experiments.yuan2025.matrix import Cell, load_scale
from nondet.runs import read_run
from nondet.settings import SettingError
from tests.factory import make_rows, write_run

SCALE = load_scale("h200")


def machine(folder: Path, cells: list[Cell], seed: int = 3, **more: Any) -> Path:
    """A folder as a machine leaves it whose drive was cut off: runs, no cells.json."""
    for cell in cells:
        setting = setting_there(cell, "/elsewhere/model", Path("/elsewhere/items"))
        facts: dict[str, Any] = {"requested": setting.to_dict(), "model_fingerprint": "one", **more}
        rows = make_rows(np.random.default_rng(seed), 3, 8, 16)
        factors = {**cell.values, "arm": cell.arm, "task": cell.task, "seed": seed}
        write_run(folder / "runs", factors, rows, repeat=setting.repeat, wall_s=12.34, **facts)
    return folder


def cells_of(out: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((out / "cells.json").read_text())["cells"]
    return found


def test_every_cell_is_told_from_every_other(tmp_path: Path) -> None:
    names = join(tmp_path / "out", SCALE, [machine(tmp_path / "new", list(SCALE.cells))])
    assert sorted(names) == sorted(cell.name for cell in SCALE.cells)
    for cell in SCALE.cells:
        what = cells_of(tmp_path / "out")[cell.name]
        run = read_run(tmp_path / "out/runs" / what["run"])
        assert run.record["requested"]["dtype"] == cell.setting().dtype
        assert run.record["requested"]["task"]["path"].endswith(f"{cell.task}.jsonl")
        assert run.record["requested"]["backend"]["options"] == cell.setting().backend.options
        assert what["seconds"] == 12.3


def test_what_is_finished_stays_and_the_rest_is_a_gap(tmp_path: Path) -> None:
    first, second, third, *_ = SCALE.cells
    out = tmp_path / "out"
    join(out, SCALE, [machine(tmp_path / "a", [first])])
    kept = cells_of(out)[first.name]
    new = machine(tmp_path / "b", [first, second], seed=4)
    cut = machine(tmp_path / "c", [third], status="partial")
    assert join(out, SCALE, [new, cut]) == [second.name]
    assert cells_of(out)[first.name] == kept
    assert cells_of(out)[third.name]["reason"].startswith("not run")
    assert len(list((out / "runs").iterdir())) == 2


def test_a_run_of_no_cell_or_of_another_model_is_refused_and_nothing_copied(
    tmp_path: Path,
) -> None:
    first, second, *_ = SCALE.cells
    other = machine(tmp_path / "other", [second], model_fingerprint="two")
    strange = machine(tmp_path / "strange", [second])
    path = next((strange / "runs").glob("*/run.json"))
    record = json.loads(path.read_text())
    record["requested"]["top_k"] = 7
    path.write_text(json.dumps(record))
    out = tmp_path / "out"
    join(out, SCALE, [machine(tmp_path / "a", [first])])
    shutil.copytree(out, tmp_path / "before")
    with pytest.raises(SettingError, match="model="):
        join(out, SCALE, [other])
    with pytest.raises(SettingError, match="of a cell of scale h200"):
        join(out, SCALE, [strange])
    assert sorted(p.name for p in out.rglob("*")) == sorted(
        p.name for p in (tmp_path / "before").rglob("*")
    )
    with pytest.raises(SettingError, match="of a single model"):
        join(out, load_scale("full"), [])
