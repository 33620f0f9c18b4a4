"""The paper's tables from the results of a scale, ours beside published.

Every row is one cell of the paper's table or one of ours: where there is no number, ``note`` says
why. Percent, tokens and 1e-4 as in the paper; intervals are 95 %.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.yuan2025 import published
from experiments.yuan2025.matrix import Cell, Scale
from experiments.yuan2025.numbers import (
    BESIDE,
    Workload,
    estimates,
    level,
    partition,
    task_name,
    value_of,
)
from experiments.yuan2025.results import Result, reasons
from nondet.metrics.accuracy import std_at_acc

DTYPES = ("bf16", "fp16", "fp32", "layercast")
ELSEWHERE = "not in this scale"
ONE = "one setting only: no spread"
NO_POSITION = "no value: no position is common to the settings, or nothing was marked"
Spec = Mapping[str, Any]
Row = dict[str, Any]


def specs(kind: str) -> dict[str, Spec]:
    """The entries of tables.yaml under ``tables`` or ``figures``."""
    given = yaml.safe_load((Path(__file__).parent / "tables.yaml").read_text())
    return dict(given[kind])


def wanted(cell: Cell, spec: Spec, scale: Scale) -> bool:
    """Whether a table or figure uses a cell."""
    if not set(cell.roles) & set(spec["roles"]):
        return False
    if cell.asked("dtype", "bf16") not in spec.get("dtypes", DTYPES):
        return False
    where = [w for w in spec.get("where", []) if w["model"] in scale.models]
    known = {"model": cell.model, "task": cell.task, "hardware": cell.hardware}
    return not where or any(all(known[k] == v for k, v in w.items()) for w in where)


class Tables:
    """Results of one scale, read once, and the tables made from them."""

    def __init__(
        self,
        scale: Scale,
        results: Sequence[Result],
        workloads: Sequence[Workload],
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        """elsewhere: why a model and task of the paper did not run, by ``model | task``."""
        self.scale, self.results, self.workloads = scale, results, workloads
        self.elsewhere = elsewhere or {}

    def make(self, name: str) -> pd.DataFrame:
        """A table by its name in tables.yaml."""
        spec = specs("tables")[name]
        if spec.get("kind") == "levels":
            return self._levels(spec)
        return self._estimates(name, spec)

    def _keep(self, spec: Spec) -> Any:
        return lambda result: wanted(result.cell, spec, self.scale)

    def estimate_rows(self, name: str, spec: Spec) -> list[Row]:
        """Ours: one row a model, task, dtype and value of ``by``, missing ones with the reason."""
        by = ["dtype", *spec.get("by", [])]
        rows: dict[tuple[str, ...], Row] = {}
        for result in self.results:
            if wanted(result.cell, spec, self.scale):
                head = _head(result, by)
                rows.setdefault(tuple(map(str, head.values())), head)
        for workload in self.workloads:
            groups = partition(workload, self._keep(spec), by)
            for key, numbers in estimates(workload, groups, str(spec["metric"]), name).items():
                rows[workload.model, workload.name, *key].update(numbers)
        for key, row in rows.items():
            members = [r for r in self.results if self._keep(spec)(r)]
            members = [r for r in members if tuple(map(str, _head(r, by).values())) == key]
            left = reasons(members)
            if "ours" not in row:
                row["note"] = left or ONE
            elif row["ours"] != row["ours"]:
                row["note"] = NO_POSITION
            else:
                there = f"{row['settings']} of {len(members)} settings"
                row["note"] = f"{there}: {left}" if left else ""
        return list(rows.values())

    def _estimates(self, name: str, spec: Spec) -> pd.DataFrame:
        by = list(spec.get("by", []))
        metric = str(spec.get("published_metric", spec["metric"]))
        printed = published.values()
        printed = printed[(printed["source"] == spec["source"]) & (printed["metric"] == metric)]
        rows = self.estimate_rows(name, spec)
        for entry in printed.to_dict("records"):
            place = _places(str(entry["setting"]))
            task = task_name(str(entry["task"]), int(place.get("samples", 1)))
            head = {"model": entry["model"], "task": task, "dtype": entry["dtype"]}
            head |= {key: place.get(key, "") for key in by}
            value = {"published": float(entry["value"]), "suspect": entry["suspect"]}
            self._join(rows, head, value)
        columns = ["model", "task", "dtype", *by, "settings", "items", "ours", "low", "high"]
        columns += [*BESIDE[str(spec["metric"])], "published", "suspect", "note"]
        return _table(rows, columns)

    def _join(self, rows: list[Row], head: Row, value: Row) -> None:
        """Put a printed value beside ours, or in a row of its own."""
        for row in rows:
            if all(str(row[key]) == str(part) for key, part in head.items()):
                row.update(value)
                return
        rows.append({**head, **value, "note": self._why_not(head)})

    def _why_not(self, head: Row) -> str:
        task = str(head["task"]).split(",")[0]
        return self.elsewhere.get(f"{head['model']} | {task}", ELSEWHERE)

    def _levels(self, spec: Spec) -> pd.DataFrame:
        """One row a setting, and one with the spread over the settings of a dtype."""
        rows: list[Row] = []
        for result in self.results:
            if wanted(result.cell, spec, self.scale) and result.run is None:
                rows.append({**_head(result, ["dtype"]), **_where(result), "note": result.reason})
        for workload in self.workloads:
            groups = partition(workload, self._keep(spec), ["dtype"])
            for group in groups.values():
                for place in group.runs:
                    result = workload.results[place]
                    head = {**_head(result, ["dtype"]), **_where(result)}
                    rows.append({**head, **level(workload, place)})
        printed = published.levels()
        for entry in printed[printed["source"] == spec["source"]].to_dict("records"):
            head = {key: entry[key] for key in ("model", "task", "dtype", "setting")}
            self._join(rows, head, {"published": float(entry["accuracy"])})
        rows += self._spreads(spec, printed[printed["source"] == spec["source"]])
        columns = ["model", "task", "dtype", "setting", "responses", "ours", "low", "high"]
        return _table(rows, [*columns, "published", "note"])

    def _spreads(self, spec: Spec, printed: pd.DataFrame) -> list[Row]:
        """Std over the settings of each dtype, in points."""
        rows: list[Row] = []
        for workload in self.workloads:
            for key, group in partition(workload, self._keep(spec), ["dtype"]).items():
                runs = list(group.runs)
                correct_CP = workload.loaded.correct_CP[runs]
                found = std_at_acc(correct_CP, item_P=workload.loaded.item_P)
                setting = f"std over {len(runs)} settings"
                head = {"model": workload.model, "task": workload.name, "dtype": key[0]}
                values = [100 * value for value in found[:3]]
                rows.append({**head, "setting": setting, **dict(zip(NUMBERS, values, strict=True))})
        for (model, task, dtype), part in printed.groupby(["model", "task", "dtype"], sort=False):
            scale = {"percent": 1.0, "share": 100.0}[part["unit"].iloc[0]]
            value = {"published": scale * float(part["printed_std"].iloc[0])}
            head: Row = {"model": model, "task": task, "dtype": dtype}
            self._join(rows, {**head, "setting": f"std over {len(part)} settings"}, value)
        return rows


NUMBERS = ("ours", "low", "high")


def _head(result: Result, by: Sequence[str]) -> Row:
    cell = result.cell
    own = {name: value_of(result, name) for name in by}
    return {"model": cell.model, "task": task_name(cell.task, cell.samples), **own}


def _where(result: Result) -> Row:
    """The setting as results/published writes it: ``2 x A100, batch size 8``."""
    gpus = value_of(result, "gpus")
    batch = value_of(result, "batch_size")
    return {"setting": f"{gpus} x {result.cell.hardware}, batch size {batch}"}


def _places(text: str) -> Row:
    """Factors in a printed setting: ``A100, 6 settings, n=16``, ``batch size 8, 4 settings``."""
    found: Row = {}
    patterns = {"hardware": r"\b(A100|L40S)\b", "gpus": r"^(\d+) x", "samples": r"n=(\d+)"}
    for key, pattern in {**patterns, "batch_size": r"batch size (\d+)"}.items():
        match = re.search(pattern, text)
        if match:
            found[key] = match[1]
    return found


def _table(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Rows as a table; whole numbers stay whole where some are missing."""
    table = pd.DataFrame(list(rows), columns=list(columns))
    for name in ("settings", "items", "responses", "diverged", "positions"):
        if name in table:
            table[name] = table[name].astype("Int64")
    for name in ("suspect", "note"):
        if name in table:
            table[name] = table[name].fillna("")
    return table
