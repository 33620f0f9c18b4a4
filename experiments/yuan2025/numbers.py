"""Numbers of groups of runs, each from the function of nondet.metrics that every report uses."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.yuan2025.results import Result, by_workload
from nondet.metrics import setting_tables
from nondet.metrics.accuracy import accuracy
from nondet.metrics.groups import Group
from nondet.metrics.load import Loaded, load, scan
from nondet.report.published import OURS

SEED = 42
# What stands beside a metric, in the units of the analysis' own tables.
BESIDE = {
    "std_at_acc": ("mean", "range", "binomial_se"),
    "avg_std_output_length": ("mean_length", "truncated_share"),
    "avg_div_index": ("diverged", "median", "mean_low", "mean_high"),
    "div_percent": ("diverged", "unique_outputs"),
    "avg_std_top1_prob": ("pooled", "positions"),
}
# Factors of a cell that says nothing of them (configs/config.yaml).
DEFAULTS = {"gpus": 1, "kernels": "default", "dtype": "bf16"}
Key = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Workload:
    """Finished results that answer the same prompts, in order, and what was read of them."""

    model: str
    task: str
    samples: int
    results: tuple[Result, ...]
    loaded: Loaded

    @property
    def name(self) -> str:
        """The task, with the number of samples where there are several."""
        return task_name(self.task, self.samples)


def task_name(task: str, samples: int) -> str:
    """A task as results/published names it: ``aime24, 16 samples``."""
    return task if samples == 1 else f"{task}, {samples} samples"


def workloads(results: Iterable[Result]) -> list[Workload]:
    """Read the finished results, one Workload each. Raises StudyError when items differ."""
    found = []
    for (model, task, samples), members in by_workload(results).items():
        runs = [result.run for result in members if result.run is not None]
        found.append(Workload(model, task, samples, tuple(members), load(runs)))
    return found


def value_of(result: Result, name: str) -> Any:
    """A factor of a result: the GPU type, or what its run was asked for."""
    if name == "hardware":
        return result.cell.hardware
    if result.run is not None:
        return result.run.factors.get(name)
    return result.cell.asked(name, DEFAULTS.get(name, ""))


def partition(
    workload: Workload, keep: Callable[[Result], bool], by: Sequence[str]
) -> dict[Key, Group]:
    """The kept runs by the values of ``by``, as groups for the tables of nondet.metrics."""
    places: dict[Key, list[int]] = {}
    for place, result in enumerate(workload.results):
        if keep(result):
            key = tuple(str(value_of(result, name)) for name in by)
            places.setdefault(key, []).append(place)
    return {
        key: Group(", ".join(key) or "all settings", "slice", "", "", tuple(members))
        for key, members in places.items()
    }


def estimates(
    workload: Workload, groups: Mapping[Key, Group], metric: str, salt: str
) -> dict[Key, dict[str, Any]]:
    """Value, low, high in the published unit, settings, items and what stands beside, by group.

    Groups of one run have no spread and are left out. ``salt`` names the table: its resampling
    depends on nothing but that name, the seed and its runs.
    """
    several = {key: group for key, group in groups.items() if len(group.runs) > 1}
    if not several:
        return {}
    listed = list(several.values())
    rng = np.random.default_rng([SEED, zlib.crc32(f"{salt} {workload.name}".encode())])
    table = _table(workload.loaded, listed, metric, rng)
    factor = OURS[metric][1] if metric in OURS else 1.0
    found = {}
    for key, row in zip(several, table.to_dict("records"), strict=True):
        if metric == "avg_div_index":
            values = (row["paper_value"], row["mean_low"], row["mean_high"])
        else:
            values = tuple(row[name] * factor for name in ("value", "low", "high"))
        beside = {name: row[name] for name in BESIDE[metric]}
        found[key] = {
            **dict(zip(("ours", "low", "high"), values, strict=True)),
            "settings": row["settings"],
            "items": row["items"],
            **beside,
        }
    return found


def _table(
    loaded: Loaded, groups: Sequence[Group], metric: str, rng: np.random.Generator
) -> pd.DataFrame:
    if metric == "std_at_acc":
        return setting_tables.accuracy_table(loaded, groups)
    if metric == "avg_std_output_length":
        return setting_tables.length_table(loaded, groups, rng)
    if metric in ("avg_div_index", "div_percent"):
        return setting_tables.div_index_table(loaded, groups, rng)
    members = {group.name: group.runs for group in groups}
    everyone = sorted({run for group in groups for run in group.runs})
    found = scan(loaded, [], members, everyone)
    return setting_tables.top1_table(loaded, groups, found, rng)


def level(workload: Workload, place: int) -> dict[str, Any]:
    """Accuracy of one run in percent with its interval, and how many responses it rests on."""
    found = accuracy(workload.loaded.outcomes[place].correct_P, workload.loaded.items)
    responses = int((workload.loaded.outcomes[place].correct_P >= 0).sum())
    values = [100 * value for value in found[:3]]
    return {**dict(zip(("ours", "low", "high"), values, strict=True)), "responses": responses}
