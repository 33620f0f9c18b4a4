"""A scale on one or two GPUs at once, many runs a GPU, for machines without Hydra.

    python -m experiments.yuan2025.h200 items FOLDER                  here: prompts to carry along
    python -m experiments.yuan2025.h200 MODEL ITEMS OUT [SECONDS [TOGETHER [TOGETHER_TWO]]]   there
    python -m experiments.yuan2025.h200 adopt OUT                     here again: tasks and marks

A first word scale=FILE takes another scale than scales/h200.yaml.

There neither the data sets nor the markers need be installed: prompts come as JSON lines, and
``adopt`` puts the real task back, checks that its prompts are the same, and marks. Bits do not
depend on what else a GPU does; tokens/s do, so those of such a study mean nothing. Cells that did
not start in time are recorded as not run. $PYTHON_VLLM is the engine's interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.yuan2025.matrix import Cell, Scale, load_scale
from nondet.execute import execute
from nondet.marking import get_marker
from nondet.marking.table import mark_table
from nondet.plan import plan_run
from nondet.progress import Lines
from nondet.runs import RESPONSE_SCHEMA, RunWriter, read_run, write_json, write_table
from nondet.settings import Setting, SettingError, TaskSetting, one_line
from nondet.study import run_folders
from nondet.tasks import Task, load_task

SCALE = "h200"
# What lanes are told through the environment.
SCALE_VARIABLE, LANES_VARIABLE = "NONDET_SCALE", "NONDET_LANES"
# The least seconds in which a run can start and end; with fewer left none is begun.
SHORTEST = 45.0
# How long after the end of the time a lane may take to write what it has.
GRACE_S = 20.0
# NVLink multicast stays off; two processes share no symmetric memory; logs hold warnings only.
SWITCHES = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "2",
}


def scale() -> Scale:
    """The scale of this process and of the lanes it starts."""
    return load_scale(os.environ.get(SCALE_VARIABLE, SCALE))


def real_task(cell: Cell) -> Task:
    """The task of a cell, with its answers."""
    return load_task(cell.setting().task)


def write_items(folder: Path) -> None:
    """The prompts of every task of the scale as JSON lines, without answers."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cell in {cell.task: cell for cell in scale().cells}.items():
        rows = [{"id": item.id, "prompt": item.prompt} for item in real_task(cell).items]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
        print(f"{name}: {len(rows)} items, {len(text):,} bytes")


def setting_there(cell: Cell, model: str, items: Path, seconds: float) -> Setting:
    """A cell's setting with the prompts from a file and the model from a folder."""
    setting = cell.setting()
    task = TaskSetting("jsonl", str(items / f"{cell.task}.jsonl"), None, {"marker": "none"})
    python = os.environ.get("PYTHON_VLLM")
    return replace(
        setting,
        model=replace(setting.model, name="local", path=model),
        backend=replace(setting.backend, python=python),
        task=task,
        timeout_s=max(seconds, SHORTEST),
    )


def lane(name: str, model: str, items: Path, out: Path, ends: float, together: int) -> None:
    """The cells of one lane in their order, ``together`` at a time, until the time is up."""
    todo = [cell for cell in scale().cells if name in lanes_of(cell)]
    todo = todo[_share(name)] if name != "both" else todo

    def work(place: int) -> None:
        what = _one(todo[place], model, items, out, ends)
        write_json(out / "said" / f"{name}-{place:03d}.json", [todo[place].name, what])

    with ThreadPoolExecutor(together) as pool:
        list(pool.map(work, range(len(todo))))


def lanes_of(cell: Cell) -> tuple[str, ...]:
    """Which lanes may run a cell: one of the two GPUs, or both."""
    return ("both",) if cell.values.get("gpus", 1) == 2 else ("gpu0", "gpu1")


def _share(name: str) -> slice:
    """Every other cell, so that both GPUs hold the most telling ones."""
    single = os.environ.get(LANES_VARIABLE) == "1"
    return slice(None) if single else slice(int(name[-1]), None, 2)


def _one(cell: Cell, model: str, items: Path, out: Path, ends: float) -> dict[str, Any]:
    """Run one cell; what became of it, never an exception."""
    left = ends - time.time()
    if left < SHORTEST:
        return {"reason": "not run: the time on the machine was up"}
    began = time.time()
    try:
        plan = plan_run(setting_there(cell, model, items, left))
        label = f"[{cell.task}] {cell.arm} {cell.values}"
        status = execute(plan, out / "runs", Lines(), label)
        record = read_run(out / "runs" / plan.run_id).record
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {one_line(error)}"[:300]}
    took = {"run": plan.run_id, "seconds": round(time.time() - began, 1)}
    return took if status != "failed" else {**took, "reason": str(record["reason"])[:300]}


def drive(model: str, items: Path, out: Path, seconds: float, together: int, two: int) -> None:
    """Start one process a lane and write cells.json from what they say."""
    (out / "said").mkdir(parents=True, exist_ok=True)
    ends = time.time() + seconds
    gpus = _gpus()
    lanes = {"gpu0": ("0", together)}
    if gpus > 1:
        lanes |= {"gpu1": ("1", together), "both": ("0,1", two)}
    processes = []
    for name, (visible, count) in lanes.items():
        words = ["lane", name, model, str(items), str(out), str(ends), str(count)]
        environment = {**os.environ, **SWITCHES, "CUDA_VISIBLE_DEVICES": visible}
        environment[LANES_VARIABLE] = "2" if gpus > 1 else "1"
        command = [sys.executable, "-m", "experiments.yuan2025.h200", *words]
        processes.append(subprocess.Popen(command, env=environment))
    for process in processes:
        try:
            process.wait(max(ends + GRACE_S - time.time(), 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
    said = dict(json.loads(p.read_text()) for p in sorted((out / "said").glob("*.json")))
    nothing = {"reason": "not run: there is one GPU" if gpus < 2 else "not run: its lane ended"}
    cells = {cell.name: said.get(cell.name, nothing) for cell in scale().cells}
    write_json(out / "cells.json", {"scale": scale().name, "cells": cells})
    write_json(out / "study.json", {"name": f"yuan2025 {scale().name}", "seed": 42})
    done = sum("reason" not in what for what in cells.values())
    print(f"{done} of {len(cells)} cells done in {seconds - ends + time.time():.0f} s", flush=True)
    for name, what in cells.items():
        print(f"  {what.get('seconds', '-'):>7} {what.get('reason', 'done')[:120]}  {name}")


def _gpus() -> int:
    from nondet.environment import gpu_names

    return len(gpu_names())


def adopt(out: Path) -> None:
    """Put the real task into runs made from carried prompts, and mark them here.

    Raises SettingError when a run's prompts are not those of the task.
    """
    cells = json.loads((out / "cells.json").read_text())["cells"]
    by_run = {what["run"]: name for name, what in cells.items() if "run" in what}
    known = {cell.name: cell for cell in scale().cells}
    for folder in run_folders(out):
        run = read_run(folder)
        if run.status != "complete" or run.id not in by_run:
            continue
        cell = known[by_run[run.id]]
        task = real_task(cell)
        if run.record["task"]["marker"] == "none":
            _check_prompts(run.record["task_fingerprint"], task, folder)
        marker = get_marker(task.marker)
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


def main(words: Sequence[str]) -> None:
    """The command line of the module's docstring."""
    if words[0].startswith("scale="):
        os.environ[SCALE_VARIABLE], words = words[0].removeprefix("scale="), words[1:]
    if words[0] == "items":
        write_items(Path(words[1]))
    elif words[0] == "adopt":
        adopt(Path(words[1]))
    elif words[0] == "lane":
        name, model, items, out, ends, together = words[1:]
        lane(name, model, Path(items), Path(out), float(ends), int(together))
    else:
        seconds, together, two = (*words[3:], *("480", "7", "3")[len(words[3:]) :])
        model, items, out = words[:3]
        drive(model, Path(items), Path(out), float(seconds), int(together), int(two))


if __name__ == "__main__":
    main(sys.argv[1:])
