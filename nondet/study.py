"""A study: all runs of one sweep, found again from its folder.

outputs/<study>/<time>/study.json   name, seed, run ids in the order they were asked for
outputs/<study>/<time>/runs/<id>    the runs (links into outputs/runs, or real folders)
outputs/<study>/<time>/report/      everything made from them
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nondet.runs import Run, incomparable, read_run
from nondet.settings import Setting

# Never a factor of a table, even when they differ between runs.
NOT_FACTORS = ("top_k",)


class StudyError(ValueError):
    """A folder that holds no study, or runs that must not be put together."""


@dataclass(frozen=True)
class Study:
    """Runs that belong together, in order; the first complete one is the reference."""

    name: str
    runs: tuple[Run, ...]
    seed: int = 0
    notes: tuple[str, ...] = ()

    @cached_property
    def complete(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.status == "complete")

    @cached_property
    def failed(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.status != "complete")

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Names of the factors that vary between the runs, in the order of the record."""
        names = {name: None for run in self.runs for name in run.factors}
        return tuple(
            name
            for name in names
            if name not in NOT_FACTORS
            and len({str(run.factors.get(name)) for run in self.runs}) > 1
            and not self._implied(name)
        )

    def _implied(self, name: str) -> bool:
        """Whether an option of backends varies only because the backend does."""
        asked = [run.record.get("requested", {}).get("backend", {}) for run in self.runs]
        if not any(name in backend.get("options", {}) for backend in asked):
            return False
        pairs = {(run.factors.get("backend"), str(run.factors.get(name))) for run in self.runs}
        return len(pairs) == len({backend for backend, _ in pairs})

    def setting_key(self, run: Run) -> tuple[tuple[str, Any], ...]:
        """What runs of one setting share: the varying factors with their values."""
        return tuple((name, run.factors.get(name)) for name in self.factors)

    def label(self, run: Run) -> str:
        """A short name of a run's setting, as in figures: ``bf16, batch_size 4``."""
        return join_factors(dict(self.setting_key(run))) or "the one setting"


def join_factors(factors: Mapping[str, Any]) -> str:
    """Factor values as words; a name goes before each value that is not a word itself.

    A factor left at the engine's own choice (None) is not named.
    """
    parts = [
        str(value) if isinstance(value, str) else f"{name} {value}"
        for name, value in factors.items()
        if value is not None
    ]
    return ", ".join(parts)


def label_of(setting: Setting, varying: Sequence[str] = ()) -> str:
    """What a setting is called while it runs: the varying factors, or the usual ones."""
    factors = setting.factors()
    names = varying or ("backend", "dtype", "kernels", "batch_size")
    return join_factors({name: factors.get(name) for name in names})


def run_folders(folder: Path) -> list[Path]:
    """Run folders, in order, of a study folder or a folder of runs; a run folder is its own."""
    if (folder / "run.json").exists():
        return [folder]
    listed = folder / "study.json"
    base = folder / "runs" if (folder / "runs").is_dir() else folder
    ids = json.loads(listed.read_text()).get("runs") if listed.exists() else None
    if ids:
        return [base / run_id for run_id in ids if (base / run_id / "run.json").exists()]
    return sorted(path.parent for path in base.glob("*/run.json"))


def load_study(folders: Sequence[Path]) -> Study:
    """One study from one or several folders, also of several machines, merged by run id.

    Raises StudyError when a folder holds no run or when two runs are not comparable; the
    message names the field that differs.
    """
    runs: dict[str, Run] = {}
    names: list[str] = []
    notes: dict[str, None] = {}
    seed = 0
    for folder in folders:
        found = run_folders(folder)
        if not found:
            raise StudyError(f"{folder}: no run folder in it (a run folder holds run.json)")
        listed = folder / "study.json"
        record = json.loads(listed.read_text()) if listed.exists() else {}
        names.append(record.get("name", folder.name))
        seed = int(record.get("seed", seed))
        if record.get("marker"):
            notes[_marker_note(record["marker"])] = None
        for path in found:
            run = read_run(path)
            runs.setdefault(run.id, run)
    study = Study(" + ".join(dict.fromkeys(names)), tuple(runs.values()), seed, tuple(notes))
    for run in study.complete[1:]:
        reason = incomparable(study.complete[0], run)
        if reason:
            other = study.complete[0].folder
            raise StudyError(f"{run.folder}: not comparable with {other}, {reason}")
    return study


def _marker_note(marker: Mapping[str, Any]) -> str:
    """How often the marker contradicted itself, as ``nondet.marking.repeat`` recorded it."""
    where = f" in the sandbox {marker['sandbox']}" if marker.get("sandbox") else ""
    return (
        f"Marker {marker['name']} {marker['version']}{where}: {marker['compared']} texts marked "
        f"once more, {marker['differ']} verdicts differ."
    )
