"""What became of every cell: its run, or the reason why there is none.

FOLDER/cells.json   {"scale": name, "cells": {cell name: {"run": id} or {"reason": words}}}
FOLDER/runs/<id>    the runs, or links to them
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.yuan2025.matrix import ANY, Cell, Scale
from nondet.runs import Run, read_run, write_json

NOT_STARTED = "not run yet"


@dataclass(frozen=True)
class Result:
    """A cell with its complete run; without one, ``reason`` says why."""

    cell: Cell
    run: Run | None
    reason: str = ""


def load_results(scale: Scale, folder: Path) -> list[Result]:
    """One Result a cell of the scale, in its order. Raises FileNotFoundError without cells.json
    and ValueError when a run that it names is missing or not what it says."""
    said = json.loads((folder / "cells.json").read_text())["cells"]
    return [_result(cell, said.get(cell.name, {}), folder) for cell in scale.cells]


def _result(cell: Cell, what: Mapping[str, Any], folder: Path) -> Result:
    if "run" not in what or "reason" in what:
        return Result(cell, None, str(what.get("reason", NOT_STARTED)))
    path = folder / "runs" / str(what["run"])
    if not (path / "run.json").exists():
        raise ValueError(f"{path}: cells.json names this run for {cell.name}, and it is not there")
    run = read_run(path)
    if run.status != "complete":
        return Result(cell, None, f"{run.status}: {run.record.get('reason')}")
    for key, value in cell.axes:
        known = run.repeat if key == "repeat" else run.factors.get(key, value)
        if str(known) != str(value):
            raise ValueError(f"{path}: {key} is {known}, and {cell.name} asks for another")
    return Result(cell, run)


def save_results(
    scale: Scale, folder: Path, said: Mapping[str, Mapping[str, Any]], store: Path | None = None
) -> None:
    """Write cells.json, and links to the runs where they lie in a ``store``."""
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    for what in said.values():
        link = folder / "runs" / str(what.get("run"))
        if "run" in what and store is not None and not link.is_symlink() and not link.exists():
            link.symlink_to((store / str(what["run"])).absolute())
    cells = {cell.name: dict(said.get(cell.name, {"reason": NOT_STARTED})) for cell in scale.cells}
    write_json(folder / "cells.json", {"scale": scale.name, "cells": cells})
    write_json(folder / "study.json", {"name": f"yuan2025 {scale.name}", "seed": 42})


def remember_elsewhere(folder: Path, reasons_by_cell: Mapping[str, str]) -> None:
    """Keep in cells.json why cells of the paper's own matrix could not run on this machine."""
    path = folder / "cells.json"
    write_json(path, {**json.loads(path.read_text()), "elsewhere": dict(reasons_by_cell)})


def load_elsewhere(folder: Path) -> dict[str, str]:
    """What ``remember_elsewhere`` kept; empty where nothing was."""
    found = json.loads((folder / "cells.json").read_text()).get("elsewhere", {})
    return {str(key): str(value) for key, value in found.items()}


def from_studies(scale: Scale, folders: Mapping[tuple[str, str, str, str], Path]) -> dict[str, Any]:
    """What became of the cells that a launcher ran; ``folders``: by ``Cell.study``.

    A run is a cell's when every swept factor agrees, and the GPU type where one is asked for. Of
    several the complete one that ended last counts, and a failed one where none is complete.
    """
    said: dict[str, Any] = {}
    for study, folder in folders.items():
        paths = sorted((folder / "runs").glob("*/run.json"))
        runs = sorted((read_run(path.parent) for path in paths), key=_rank)
        for cell in scale.cells:
            if cell.study == study:
                for run in runs:
                    said.update({cell.name: _said(run)} if _fits(cell, run) else {})
    return said


def _said(run: Run) -> dict[str, Any]:
    if run.status == "complete":
        return {"run": run.id}
    return {"run": run.id, "reason": f"{run.status}: {run.record.get('reason')}"}


def _rank(run: Run) -> tuple[bool, str]:
    """Of two runs of a cell the larger one counts."""
    return run.status == "complete", str(run.record.get("ended") or "")


def _fits(cell: Cell, run: Run) -> bool:
    values = {**run.factors, "repeat": run.repeat}
    gpus = ", ".join((run.record.get("environment") or {}).get("gpus") or [])
    here = cell.hardware == ANY or cell.hardware in gpus
    return here and all(str(values.get(key)) == str(value) for key, value in cell.axes)


def by_workload(results: Iterable[Result]) -> dict[tuple[str, str, int], list[Result]]:
    """Finished results that may be compared: one model, task and number of samples each."""
    found: dict[tuple[str, str, int], list[Result]] = {}
    for result in results:
        if result.run is not None:
            samples = int(result.run.factors.get("samples", 1))
            found.setdefault((result.cell.model, result.cell.task, samples), []).append(result)
    return found


def reasons(results: Sequence[Result]) -> str:
    """Why cells are missing, each reason once with how often."""
    counts: dict[str, int] = {}
    for result in results:
        if result.run is None:
            counts[result.reason] = counts.get(result.reason, 0) + 1
    return "; ".join(f"{reason} ({count})" for reason, count in counts.items())
