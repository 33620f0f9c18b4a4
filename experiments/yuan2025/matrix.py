"""The cells of a scale: which runs there are, and which of the paper's arms they belong to.

A scale (scales/NAME.yaml) names models, tasks, GPU types and arms. What an arm sweeps stands in
its Hydra file, configs/sweep/<sweep>.yaml, and nowhere else; ``set`` in an arm replaces values of
that file as an override on the command line does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from nondet.data import data_folder
from nondet.settings import Setting, SettingError, setting_from

HERE = Path(__file__).parent
# Keys of a sweep file that are no factors of a run.
STEERING = ("defaults", "hydra", "study", "repeats")
# The GPU type of a scale that takes the machine as it is.
ANY = "this machine"


@dataclass(frozen=True)
class Cell:
    """One run of the matrix.

    roles: what the arm stands for in tables.yaml. model, task: names as in the paper. hardware:
    GPU type, or ANY. fixed: Hydra overrides of model, task and arm. axes: values of the swept
    factors, in the order of the sweep file.
    """

    arm: str
    roles: tuple[str, ...]
    sweep: str
    model: str
    task: str
    hardware: str
    fixed: tuple[str, ...]
    axes: tuple[tuple[str, Any], ...]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The swept factors by name."""
        return dict(self.axes)

    @property
    def study(self) -> tuple[str, str, str, str]:
        """What the runs of one Hydra command share."""
        return (self.arm, self.model, self.task, self.hardware)

    @property
    def name(self) -> str:
        """Unique in its scale; a key of cells.json."""
        axes = ", ".join(f"{key}={value}" for key, value in self.axes)
        return " | ".join([*self.study, axes])

    @property
    def words(self) -> list[str]:
        """Overrides for ``python -m nondet.run`` that make this one setting."""
        return [f"+sweep={self.sweep}", *self.fixed, *(f"{k}={v}" for k, v in self.axes)]

    def asked(self, factor: str, default: Any) -> Any:
        """What a factor was asked to be: swept, fixed by the cell or by the sweep file."""
        given = dict(word.lstrip("+").partition("=")[::2] for word in self.fixed)
        if factor in self.values:
            return self.values[factor]
        if factor in given:
            return _scalar(given[factor])
        return sweep_file(self.sweep)[0].get(factor, default)

    @property
    def samples(self) -> int:
        """Responses an item."""
        return int(self.asked("samples", 1))

    def setting(self) -> Setting:
        """The setting, without Hydra. Raises SettingError."""
        return self._setting

    @cached_property
    def _setting(self) -> Setting:
        values = dict(sweep_file(self.sweep)[0])
        for word in (*self.fixed, *(f"{key}={value}" for key, value in self.axes)):
            key, _, text = word.lstrip("+").partition("=")
            _put(values, key, _scalar(text))
        return setting_from(values)


@dataclass(frozen=True)
class Scale:
    """All cells of a scale, in the order they are run."""

    name: str
    about: str
    launcher: bool
    cells: tuple[Cell, ...]
    models: Mapping[str, Mapping[str, Any]]
    tasks: Mapping[str, Mapping[str, Any]]

    def commands(self) -> dict[tuple[str, str, str, str], list[str]]:
        """The overrides of one Hydra multirun for each study."""
        found: dict[tuple[str, str, str, str], list[str]] = {}
        for cell in self.cells:
            if cell.study in found:
                continue
            swept = sweep_file(cell.sweep)[1]
            members = [other for other in self.cells if other.study == cell.study]
            words = [f"+sweep={cell.sweep}", *cell.fixed]
            for key in cell.values:
                levels = list(dict.fromkeys(str(other.values[key]) for other in members))
                if levels != [str(value) for value in swept.get(key, [])]:
                    words.append(f"{key}={','.join(levels)}")
            found[cell.study] = words
        return found


def scale_names() -> list[str]:
    """The scales there are."""
    return sorted(path.stem for path in (HERE / "scales").glob("*.yaml"))


def load_scale(name: str, model: str | None = None) -> Scale:
    """A scale by name, or from a YAML file. Raises SettingError.

    model: a folder that holds the model, for scales with a single one.
    """
    path = Path(name) if name.endswith(".yaml") else HERE / "scales" / f"{name}.yaml"
    if not path.is_file():
        raise SettingError("SCALE", name, "one of " + ", ".join(scale_names()))
    given = yaml.safe_load(path.read_text())
    if model is not None:
        if len(given["models"]) > 1:
            raise SettingError("MODEL", model, f"left out: SCALE={name} has several models")
        next(iter(given["models"].values()))["words"] = ["model=local", f"model.path={model}"]
    cells = [
        cell
        for arm, what in given["arms"].items()
        for cell in _arm(str(arm), what, given["models"], given["tasks"])
    ]
    cells.sort(key=lambda cell: _rank(cell, given.get("first", [])))
    return Scale(
        path.stem,
        str(given["about"]).strip(),
        bool(given.get("launcher", False)),
        tuple(cells),
        given["models"],
        given["tasks"],
    )


def _arm(
    arm: str, what: Mapping[str, Any], models: Mapping[str, Any], tasks: Mapping[str, Any]
) -> Iterator[Cell]:
    axes = dict(sweep_file(what["sweep"])[1])
    extra = dict(what.get("set", {}))
    axes.update({key: _listed(value) for key, value in extra.items() if key in axes})
    fixed = [f"{key}={value}" for key, value in extra.items() if key not in axes]
    for model, task, hardware in itertools.product(
        what.get("models", models), what.get("tasks", tasks), what.get("hardware", [ANY])
    ):
        words = (*models[model]["words"], *tasks[task]["words"], *fixed)
        for levels in itertools.product(*axes.values()):
            chosen = tuple(zip(axes, levels, strict=True))
            roles = tuple(what["roles"])
            yield Cell(arm, roles, what["sweep"], model, task, hardware, words, chosen)


def _rank(cell: Cell, first: list[Mapping[str, Any]]) -> int:
    """The place of the first pattern in ``first`` that a cell fits: the earlier, the sooner."""
    known = {"arm": cell.arm, "task": cell.task, **cell.values}
    for place, pattern in enumerate(first):
        if all(str(known.get(key)) == str(value) for key, value in pattern.items()):
            return place
    return len(first)


@cache
def sweep_file(name: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Factors that a file of configs/sweep fixes, as ``setting_from`` reads them, and its axes."""
    given = yaml.safe_load((data_folder("configs") / "sweep" / f"{name}.yaml").read_text())
    values = {key: value for key, value in given.items() if key not in STEERING}
    name = "hf"
    for entry in given.get("defaults", []):
        for key, value in entry.items():
            if key == "override /backend":
                name = str(value)
    given_backend = values.get("backend", {})
    values["backend"] = {"name": name, **_group_file("backend", name), **given_backend}
    params = given["hydra"]["sweeper"]["params"]
    return values, {key: _listed(value) for key, value in params.items()}


@cache
def _group_file(group: str, name: str) -> dict[str, Any]:
    """What a file of a config group sets; options left at null take their default."""
    path = data_folder("configs") / group / f"{name}.yaml"
    given = yaml.safe_load(path.read_text()) if path.is_file() else {}
    return {key: value for key, value in given.items() if value is not None and key != "name"}


def _listed(value: Any) -> list[Any]:
    """The values of a sweep: ``8,16,32`` or a single one."""
    return [_scalar(part) for part in str(value).split(",")]


@cache
def _scalar(text: str) -> Any:
    """A word as YAML reads it. Kept: a full scale asks ten thousand times, and YAML is slow."""
    return yaml.safe_load(text)


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    group, _, rest = key.partition(".")
    if not rest and key in ("model", "task", "backend"):
        values[key] = {"name": value, **_group_file(key, str(value))}
    elif rest:
        values[group] = {**values.get(group, {}), rest: value}
    else:
        values[key] = value
