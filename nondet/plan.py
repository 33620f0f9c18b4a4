"""From a setting to a planned run: everything checked and resolved before anything starts."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nondet.backends.base import Backend, checked_backend, known_path
from nondet.environment import (
    code_hash,
    cpu_count,
    cpu_name,
    gpu_names,
    inherited_switches,
    versions_in,
)
from nondet.marking import get_marker
from nondet.models import ModelFiles, find_model
from nondet.parallel.check import check_heads, check_ranks
from nondet.runs import digest
from nondet.settings import ModelSetting, Setting, SettingError, TaskSetting, one_line
from nondet.tasks import load_task
from nondet.tasks.base import Task
from nondet.workload import Workload, make_workload


@dataclass(frozen=True)
class Plan:
    """One run, ready to start. ``resolved``: what the defaults mean on this machine."""

    run_id: str
    setting: Setting
    resolved: dict[str, Any]
    backend: type[Backend]
    python: Path | None
    model: ModelFiles
    task: Task
    task_fingerprint: str
    workload: Workload


def plan_run(setting: Setting) -> Plan:
    """Check a setting against its backend, machine, model and task. Raises SettingError.

    The run id hashes everything that may move a token: the resolved setting, model and prompts,
    the repeat, our generating code, engine versions, hardware and inherited variables. Answers
    and markers are not in it: a run whose marker changed is marked again, not generated again.
    """
    backend = checked_backend(setting)
    device = resolve_device(setting)
    backend.check_device(setting, device)
    check_ranks(setting, device)
    python = known_path(setting.backend.python)
    if python is not None and not python.is_file():
        name = setting.backend.name
        raise SettingError("backend.python", python, f"an interpreter; `make venv-{name}` makes it")
    model = _model(setting.model)
    check_heads(setting, model.path)
    task = _task(setting.task.name, setting.task.path, setting.task.limit, _frozen(setting.task))
    workload = make_workload(setting, task, model)
    resolved = {
        **setting.to_dict(),
        "device": device,
        "threads": setting.threads or cpu_count(),
        "repeat": 0,
        "timeout_s": None,
        "task": task.name,
        "model": model.fingerprint,
        "backend": {"name": setting.backend.name, "options": setting.backend.moving()},
        "versions": {**_versions(python, backend), **backend.versions_elsewhere(setting)},
        "switches": inherited_switches(_replaced(setting, backend)),
        "hardware": [cpu_name(), *(gpu_names() if device == "cuda" else ())],
        "code": code_hash(),
    }
    identity = [resolved, workload.fingerprint, setting.repeat]
    marker = get_marker(task.marker)
    return Plan(
        digest(identity),
        setting,
        resolved,
        backend,
        python,
        model,
        task,
        task.fingerprint(marker.version),
        workload,
    )


def _versions(python: Path | None, backend: type[Backend]) -> dict[str, str | None]:
    try:
        return versions_in(str(python) if python else None, backend.packages())
    except (OSError, ValueError) as error:
        valid = f"an interpreter that starts and finds nondet ({one_line(error)[:160]})"
        raise SettingError("backend.python", python, valid) from error


def _replaced(setting: Setting, backend: type[Backend]) -> set[str]:
    """Variables that a worker is given anew, or that a factor of the setting overrules."""
    names = set(backend.environment(setting))
    if setting.backend.name == "hf" or setting.threads is not None:
        names |= {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    return names


def resolve_device(setting: Setting) -> str:
    """ "cpu" or "cuda"; raises SettingError for GPUs that are not there."""
    gpus = gpu_names()
    if setting.device == "cuda" and not gpus:
        raise SettingError("device", "cuda", "cpu or auto: there is no GPU here")
    device = "cuda" if gpus and setting.device != "cpu" else "cpu"
    if device == "cuda" and setting.gpus > len(gpus):
        raise SettingError("gpus", setting.gpus, f"at most {len(gpus)}, the GPUs there are")
    return device


def repeats_of(setting: Setting, repeats: int) -> list[Setting]:
    """The setting and its repeats, each to be run in a fresh process."""
    return [replace(setting, repeat=setting.repeat + number) for number in range(repeats + 1)]


# Many settings of a study share model and task: find and load each once.
@functools.cache
def _model(setting: ModelSetting) -> ModelFiles:
    return find_model(setting)


def _frozen(task: TaskSetting) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(task.options.items()))


@functools.cache
def _task(
    name: str, path: str | None, limit: int | None, options: tuple[tuple[str, Any], ...]
) -> Task:
    return load_task(TaskSetting(name, path, limit, dict(options)))
