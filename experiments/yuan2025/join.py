"""Runs from a further machine put beside those of the cells that are there already.

A drive that was cut off left no cells.json, so a run is known by what was asked of it: all of its
setting but the machine's paths and the time limit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.yuan2025.matrix import Scale
from nondet.runs import read_run, write_json
from nondet.settings import SettingError
from nondet.study import run_folders

GAP = {"reason": "not run: the time on the machine was up"}


def join(out: Path, scale: Scale, new: Sequence[Path]) -> list[str]:
    """Copy complete runs of the ``new`` folders into ``out`` and its cells.json; their cells.

    A finished cell keeps its run. Raises SettingError for a scale of several models, and for a run
    of no cell or of another model than those in ``out``; nothing is copied then.
    """
    if len(scale.models) > 1:
        raise SettingError("scale", scale.name, "one of a single model")
    known = {_asked(cell.setting().to_dict(), cell.task): cell.name for cell in scale.cells}
    listed = out / "cells.json"
    before = json.loads(listed.read_text())["cells"] if listed.exists() else {}
    finished = {name: what for name, what in before.items() if "reason" not in what}
    models = {read_run(folder).record["model_fingerprint"] for folder in run_folders(out)}
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in [path for one in new for path in run_folders(one / "runs")]:
        run = read_run(folder)
        if run.status != "complete":
            continue
        asked = run.record["requested"]
        name = known.get(_asked(asked, Path(asked["task"]["path"] or "").stem))
        if name is None:
            raise SettingError("run", run.id, f"of a cell of scale {scale.name}")
        models.add(run.record["model_fingerprint"])
        if len(models) > 1:
            raise SettingError("model", str(folder), f"that of the runs in {out}")
        if name not in finished and name not in found:
            seconds = round(float(run.record["wall_s"]), 1)
            found[name] = (folder, {"run": run.id, "seconds": seconds})
    for folder, what in found.values():
        _copy(folder, out / "runs" / str(what["run"]))
    said = {**finished, **{name: what for name, (_, what) in found.items()}}
    cells = {cell.name: said.get(cell.name) or before.get(cell.name, GAP) for cell in scale.cells}
    write_json(listed, {"scale": scale.name, "cells": cells})
    return list(found)


def _asked(setting: Mapping[str, Any], task: str) -> str:
    """What tells one cell's run from another's, wherever model and prompts lay."""
    own = {key: value for key, value in setting.items() if key not in ("model", "timeout_s")}
    return json.dumps({**own, "task": task, "backend": {**own["backend"], "python": None}},
                      sort_keys=True)  # fmt: skip


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokens.parquet", "run.json"):
        shutil.copyfile(source / name, target / name)
