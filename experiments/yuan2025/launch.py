"""Running the cells of a scale: here, one after another, or through one of Hydra's launchers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from experiments.yuan2025.matrix import Cell, Scale
from experiments.yuan2025.results import from_studies, save_results
from nondet.data import data_folder
from nondet.execute import execute
from nondet.plan import Plan, plan_run
from nondet.progress import Display, Lines
from nondet.runs import read_run
from nondet.settings import one_line
from nondet.sweep import MISTAKES, setting_of

LAUNCHERS = ("slurm", "ray", "submitit_local")
# Hydra commands at a time; each waits for its jobs.
TOGETHER = 8


def plan_cells(scale: Scale, words: Sequence[str] = ()) -> dict[str, Plan | str]:
    """Every cell as a run ready to start, or the reason why it cannot; nothing is started.

    words: further overrides of every cell.
    """
    found: dict[str, Plan | str] = {}
    with initialize_config_dir(str(data_folder("configs")), version_base="1.3"):
        for cell in scale.cells:
            try:
                setting = setting_of(compose("config", [*words, *cell.words]))
                found[cell.name] = plan_run(setting)
            except MISTAKES as error:
                found[cell.name] = one_line(error)
    return found


def run_here(
    scale: Scale, outputs: Path, display: Display | None = None, words: Sequence[str] = ()
) -> Path:
    """Run what can run, skip what is done, and write cells.json; returns the study's folder.

    A failed run is recorded with its reason. Killed at any point, the same call goes on.
    """
    folder, store = study_folder(scale, outputs), outputs / "runs"
    plans = plan_cells(scale, words)
    said: dict[str, Mapping[str, Any]] = {}
    display = display or Lines(sum(isinstance(plan, Plan) for plan in plans.values()))
    for cell in scale.cells:
        plan = plans[cell.name]
        if isinstance(plan, str):
            said[cell.name] = {"reason": plan}
        else:
            said[cell.name] = _one(cell, plan, store, display)
    save_results(scale, folder, said, store)
    return folder


def _one(cell: Cell, plan: Plan, store: Path, display: Display) -> dict[str, Any]:
    axes = ", ".join(f"{key} {value}" for key, value in cell.axes)
    status = execute(plan, store, display, f"{cell.arm}, {cell.task}, {axes}")
    if status != "failed":
        return {"run": plan.run_id}
    reason = read_run(store / plan.run_id).record["reason"]
    return {"run": plan.run_id, "reason": f"failed: {one_line(ValueError(reason))}"}


def study_folder(scale: Scale, outputs: Path) -> Path:
    """Where a scale keeps its cells.json, links and report."""
    return outputs / "yuan2025" / scale.name


def commands(
    scale: Scale, outputs: Path, launcher: str, hardware: str | None, words: Sequence[str]
) -> dict[tuple[str, str, str, str], list[str]]:
    """The command line of every study of the scale, for one GPU type or all."""
    found = {}
    for study, own in scale.commands().items():
        if hardware in (None, study[3]):
            target = study_folder(scale, outputs) / slug(study)
            steering = [f"+launcher={launcher}", f"outputs={outputs}", "report=false"]
            steering.append(f"hydra.sweep.dir={target}")
            base = [sys.executable, "-m", "nondet.run"]
            found[study] = [*base, *own, *steering, *words]
    return found


def slug(study: Sequence[str]) -> str:
    """A study as a folder name."""
    return re.sub(r"[^\w.]+", "-", "_".join(study))


def run_launched(
    scale: Scale, outputs: Path, launcher: str, hardware: str | None, words: Sequence[str]
) -> Path:
    """Run every study through a launcher, several at a time, then write cells.json."""
    found = commands(scale, outputs, launcher, hardware, words)
    errors: dict[tuple[str, ...], str] = {}

    def work(study: tuple[str, str, str, str]) -> None:
        done = subprocess.run(found[study], capture_output=True, text=True, check=False)
        last = done.stderr.strip().splitlines()[-1:]
        if done.returncode:
            errors[study] = (last or [f"exit code {done.returncode}"])[0]
        print(f"{' | '.join(study)}: {errors.get(study, 'done')}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(TOGETHER) as pool:
        list(pool.map(work, found))
    folder = study_folder(scale, outputs)
    everything = {cell.study: folder / slug(cell.study) for cell in scale.cells}
    said = from_studies(scale, everything)
    for cell in scale.cells:
        if cell.study in errors:
            said.setdefault(cell.name, {"reason": errors[cell.study]})
    save_results(scale, folder, said, outputs / "runs")
    return folder
