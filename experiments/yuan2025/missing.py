"""What a cell needs that is not here. Looks at this machine only, never at the network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from experiments.yuan2025.matrix import ANY, Cell, Scale
from nondet.backends.base import Backend, backend_class, known_path
from nondet.environment import gpu_names
from nondet.settings import Setting, SettingError


def missing(cell: Cell, scale: Scale, launcher: bool = False) -> list[str]:
    """The reasons why a cell cannot run, in words; empty when nothing is known to be missing.

    launcher: the runs go to other machines, so GPUs and interpreters here do not count.
    """
    found = []
    try:
        setting = cell.setting()
        _backend(setting.backend.name).check(setting)
    except SettingError as error:
        return [str(error)]
    if not launcher:
        found += [*_engine(setting), *_gpus(cell, setting)]
    found += _model(setting, scale.models[cell.model])
    found += _data(scale.tasks[cell.task], setting)
    return found


@cache
def _backend(name: str) -> type[Backend]:
    """Kept: looking through all entry points takes longer than everything else here."""
    return backend_class(name)


def _engine(setting: Setting) -> list[str]:
    python = known_path(setting.backend.python)
    if python is None or python.is_file():
        return []
    name = setting.backend.name
    return [f"{name} is not installed (make venv-{name})"]


def _gpus(cell: Cell, setting: Setting) -> list[str]:
    here = gpu_names()
    if cell.hardware == ANY:
        enough = setting.gpus <= max(len(here), 1)
        return [] if enough else [f"{setting.gpus} GPUs, here: {len(here)}"]
    fitting = [name for name in here if cell.hardware in name]
    if len(fitting) >= setting.gpus:
        return []
    return [f"{setting.gpus} x {cell.hardware}, here: {', '.join(here) or 'no GPU'}"]


def _model(setting: Setting, facts: Mapping[str, Any]) -> list[str]:
    path = setting.model.path
    if setting.model.name != "hub" or path is None or Path(path).is_dir():
        return []
    if _cached(path, "model"):
        return []
    gated = ", gated: log in to the Hub first" if facts.get("gated") else ""
    return [f"the model {path} (not in the Hub cache{gated})"]


def _data(facts: Mapping[str, Any], setting: Setting) -> list[str]:
    hub = facts.get("hub")
    if not hub or setting.task.path or _cached(hub, "dataset"):
        return []
    gated = ", gated: log in to the Hub first" if facts.get("gated") else ""
    return [f"the data set {hub} (not in the Hub cache{gated}; or give task.path)"]


@cache
def _cached(name: str, kind: str) -> bool:
    """Whether some revision of a Hub repository lies in this machine's cache."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}"
    return any(folder.glob("snapshots/*/*"))


def summary(scale: Scale, launcher: bool = False) -> dict[str, int]:
    """Every reason with the number of cells it holds up."""
    counts: dict[str, int] = {}
    for cell in scale.cells:
        for reason in missing(cell, scale, launcher):
            counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def elsewhere(scale: Scale) -> dict[str, str]:
    """Why the cells of a scale do not run here, by ``model | task``, for the tables."""
    found: dict[str, str] = {}
    for cell in scale.cells:
        words = missing(cell, scale)
        if words:
            found.setdefault(f"{cell.model} | {cell.task}", "needs " + "; ".join(words))
    return found
