"""Running the cells of a scale: here, one after another, or through one of Hydra's launchers."""

from __future__ import annotations

import functools
import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

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
# With fewer seconds left no run is begun.
SHORTEST_S = 15.0


def plan_cells(scale: Scale, words: Sequence[str] = ()) -> dict[str, Plan | str]:
    """Every cell as a run ready to start, or the reason why it cannot; nothing is started.

    words: further overrides of every cell.
    """
    found: dict[str, Plan | str] = {}
    bases: dict[tuple[str, ...], DictConfig] = {}
    with initialize_config_dir(str(data_folder("configs")), version_base="1.3"):
        for cell in scale.cells:
            try:
                found[cell.name] = plan_run(setting_of(_composed(cell, words, bases)))
            except MISTAKES as error:
                found[cell.name] = one_line(error)
    return found


def _composed(
    cell: Cell, words: Sequence[str], bases: dict[tuple[str, ...], DictConfig]
) -> DictConfig:
    """A cell's config. Composing takes longest when all runs are there, so what the cells of a
    study share is composed once, and the swept values are put into a copy."""
    if _groups() & set(cell.values):
        return compose("config", [*words, *cell.words])
    shared = (f"+sweep={cell.sweep}", *cell.fixed)
    if shared not in bases:
        bases[shared] = compose("config", [*words, *shared])
    config = bases[shared].copy()
    for key, value in cell.axes:
        OmegaConf.update(config, key, value)
    return config


@functools.cache
def _groups() -> frozenset[str]:
    """Config groups: a value of one is a file, which only Hydra can put in."""
    return frozenset(path.name for path in data_folder("configs").iterdir() if path.is_dir())


def run_here(
    scale: Scale, outputs: Path, words: Sequence[str] = (), minutes: float = math.inf
) -> Path:
    """Run what can run, skip what is done, and write cells.json; returns the study's folder.

    A failed run is recorded with its reason. After ``minutes`` no run is begun and the one under
    way ends; cells.json names what is left, and the same call goes on with it, as it does after
    a kill at any point.
    """
    ends = time.monotonic() + 60 * minutes
    folder, store = study_folder(scale, outputs), outputs / "runs"
    plans = plan_cells(scale, words)
    said: dict[str, Mapping[str, Any]] = {}
    display = Lines(sum(isinstance(plan, Plan) for plan in plans.values()))
    for cell in scale.cells:
        plan = plans[cell.name]
        if isinstance(plan, str):
            said[cell.name] = {"reason": plan}
        else:
            said[cell.name] = _one(cell, plan, store, display, ends, minutes)
    save_results(scale, folder, said, store)
    return folder


def _one(
    cell: Cell, plan: Plan, store: Path, display: Display, ends: float, minutes: float
) -> dict[str, Any]:
    left = ends - time.monotonic()
    later = {"reason": f"not run: {minutes:g} minutes were up; the same command goes on"}
    if left < SHORTEST_S and not _complete(store / plan.run_id):
        return later
    axes = ", ".join(f"{key} {value}" for key, value in cell.axes)
    limited = min(left, plan.setting.timeout_s or math.inf)
    if math.isfinite(limited):
        setting = replace(plan.setting, timeout_s=max(limited, SHORTEST_S))
        plan = replace(plan, setting=setting)
    status = execute(plan, store, display, f"{cell.arm}, {cell.task}, {axes}")
    if status != "failed":
        return {"run": plan.run_id}
    if time.monotonic() >= ends:
        return later
    reason = read_run(store / plan.run_id).record["reason"]
    return {"run": plan.run_id, "reason": f"failed: {' '.join(str(reason).split())}"}


def _complete(folder: Path) -> bool:
    return (folder / "run.json").exists() and read_run(folder).status == "complete"


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
