"""Prompts carried to a machine without data sets and markers, and runs taken back from there.

There a task is JSON lines of prompts without answers. ``adopt`` puts the real task back, checks
that its prompts are the same, and marks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.yuan2025.matrix import Cell, Scale
from nondet.marking import get_marker
from nondet.marking.table import mark_table
from nondet.runs import RESPONSE_SCHEMA, RunWriter, read_run, write_table
from nondet.settings import Setting, SettingError, TaskSetting
from nondet.study import run_folders
from nondet.tasks import Task, load_task


def real_task(cell: Cell) -> Task:
    """The task of a cell, with its answers."""
    return load_task(cell.setting().task)


def write_items(folder: Path, scale: Scale) -> None:
    """The prompts of every task of the scale as JSON lines, without answers."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cell in {cell.task: cell for cell in scale.cells}.items():
        rows = [{"id": item.id, "prompt": item.prompt} for item in real_task(cell).items]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
        print(f"{name}: {len(rows)} items, {len(text):,} bytes")


def setting_there(cell: Cell, model: str, items: Path) -> Setting:
    """A cell's setting with the prompts from a file and the model from a folder."""
    setting = cell.setting()
    task = TaskSetting("jsonl", str(items / f"{cell.task}.jsonl"), None, {"marker": "none"})
    python = os.environ.get("PYTHON_VLLM")
    return replace(
        setting,
        model=replace(setting.model, name="local", path=model),
        backend=replace(setting.backend, python=python),
        task=task,
    )


def adopt(out: Path, scale: Scale) -> None:
    """Put the real task into runs made from carried prompts, and mark them here.

    Raises SettingError when a run's prompts are not those of the task.
    """
    cells = json.loads((out / "cells.json").read_text())["cells"]
    by_run = {what["run"]: name for name, what in cells.items() if "run" in what}
    known = {cell.name: cell for cell in scale.cells}
    for folder in run_folders(out):
        run = read_run(folder)
        if run.status != "complete" or run.id not in by_run:
            continue
        cell = known[by_run[run.id]]
        task = real_task(cell)
        marker = get_marker(task.marker)
        told = run.record["task"]
        if told["marker"] != "none" and told.get("marker_version") == marker.version:
            continue  # marked before, by this marker
        if told["marker"] == "none":
            _check_prompts(run.record["task_fingerprint"], task, folder)
        setting = cell.setting()
        record = {
            **run.record,
            "factors": {**run.record["factors"], **_named(cell, setting)},
            "requested": _requested(run.record["requested"], cell, setting),
            "task_fingerprint": task.fingerprint(marker.version),
            "task": {
                "setting": setting.to_dict()["task"],
                "name": task.name,
                "source": task.source,
                "items": len(task.items),
                "marker": task.marker,
                "marker_version": marker.version,
            },
        }
        write_table(folder / "tokens.parquet", mark_table(task, run.table(RESPONSE_SCHEMA.names)))
        RunWriter(folder).record(record)
        print(f"{run.id} {cell.name}: marked")


def _named(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Factors without the paths of the machine."""
    return {"task": setting.task.name, "model": cell.model}


def _requested(there: Mapping[str, Any], cell: Cell, setting: Setting) -> dict[str, Any]:
    """What was asked for, with the real task and without the paths of the machine."""
    backend = {**there["backend"], "python": None}
    model = {**there["model"], "path": cell.model}
    return {**there, "backend": backend, "model": model, "task": setting.to_dict()["task"]}


def _check_prompts(fingerprint: str, task: Task, folder: Path) -> None:
    """The carried prompts are those of the task: their fingerprints, without answers, agree."""
    bare = replace(
        task,
        items=tuple(replace(item, answer=None, meta={}) for item in task.items),
        marker="none",
    )
    if bare.fingerprint(get_marker("none").version) != fingerprint:
        raise SettingError("task", task.name, f"the one whose prompts {folder} answers")
