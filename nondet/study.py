"""A study: all runs of one sweep, found again from its folder.

outputs/<study>/<time>/study.json   name, seed, run ids in the order they were asked for
outputs/<study>/<time>/runs/<id>    the runs (links into outputs/runs, or real folders)
outputs/<study>/<time>/report/      everything made from them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nondet.runs import Run, incomparable, read_run
from nondet.settings import Setting

# Never a factor of a table, even when they differ between runs.
NOT_FACTORS = ("top_k",)
# Packages whose versions tell runs of one setting apart.
GENERATING = ("torch", "transformers", "vllm", "sglang")


class StudyError(ValueError):
    """A folder that holds no study, or runs that must not be put together."""


@dataclass(frozen=True)
class Study:
    """Runs that belong together, in order; the first complete one is the reference.

    missing: how many runs were asked for and have no folder, as after a killed sweep.
    """

    name: str
    runs: tuple[Run, ...]
    seed: int = 0
    notes: tuple[str, ...] = ()
    missing: int = 0

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
            and not self._one_in_force(name)
        )

    def _one_in_force(self, name: str) -> bool:
        """Whether what was asked for in several words meant one thing.

        A model may have moved between runs, and threads=null may be as many as threads=2. A run
        that is taken from the store keeps the words it was first asked for with.
        """
        if name not in ("model", "threads", "device"):
            return False
        resolved = [run.record.get("resolved", {}).get(name) for run in self.runs]
        return None not in resolved and len({str(value) for value in resolved}) == 1

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

    def absent(self, side: str = "") -> list[str]:
        """A sentence on runs that were asked for and have no folder; none where all have one."""
        words = (
            "run that was asked for has" if self.missing == 1 else "runs that were asked for have"
        )
        where = f" in {side}" if side else ""
        return [f"{self.missing} {words} no folder{where}."] if self.missing else []


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

    Of a run that is in several folders a complete copy is taken. Runs of one setting on different
    machines or with different versions are no repeats: these become factors (``told_apart``).
    Raises StudyError when a folder holds no run or when two runs are not comparable; the
    message names the field that differs.
    """
    runs: dict[str, Run] = {}
    names: list[str] = []
    notes: dict[str, None] = {}
    seed = missing = 0
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
        asked = max(int(record.get("planned") or 0), len(record.get("runs") or ()))
        missing += max(0, asked - len(found))
        for path in found:
            run = read_run(path)
            if run.id not in runs or runs[run.id].status != "complete":
                runs[run.id] = run
    name = " + ".join(dict.fromkeys(names))
    study = told_apart(Study(name, tuple(runs.values()), seed, tuple(notes), missing))
    for run in study.complete[1:]:
        reason = incomparable(study.complete[0], run)
        if reason:
            other = study.complete[0].folder
            raise StudyError(f"{run.folder}: not comparable with {other}, {reason}")
    return study


def told_apart(study: Study) -> Study:
    """The study with what else its runs differ in as factors: machine, versions, code.

    Two runs are repeats only if nothing that may move a token differs. Machine and versions become
    factors where they vary within a setting; the hash of our code only where two runs of a
    setting have the same repeat number all the same.
    """
    for name, fact in (("machine", machine_of), ("versions", versions_of)):
        values: dict[str, set[str]] = {}
        for run in study.complete:
            values.setdefault(repr(study.setting_key(run)), set()).add(fact(run))
        if any(len(found - {""}) > 1 for found in values.values()):
            study = _with_factor(study, name, fact)
    keys = [repr((study.setting_key(run), run.repeat)) for run in study.complete]
    return study if len(set(keys)) == len(keys) else _with_factor(study, "code", code_of)


def _with_factor(study: Study, name: str, fact: Callable[[Run], str]) -> Study:
    runs = tuple(
        Run(run.folder, {**run.record, "factors": {**run.factors, name: fact(run) or None}})
        for run in study.runs
    )
    return replace(study, runs=runs)


def machine_of(run: Run) -> str:
    """Kinds of GPU that a run was made on, or its CPU; empty where it was not recorded."""
    environment = run.record.get("environment") or {}
    device = str((run.record.get("observed") or {}).get("device", ""))
    gpus = [] if device.startswith("cpu") else list(environment.get("gpus") or [])
    return " and ".join(sorted(set(map(str, gpus)))) or str(environment.get("cpu") or "")


def versions_of(run: Run) -> str:
    """Versions of what generates; empty where they were not recorded."""
    versions = (run.record.get("environment") or {}).get("versions") or {}
    return ", ".join(f"{name} {versions[name]}" for name in GENERATING if versions.get(name))


def code_of(run: Run) -> str:
    """Hash of our generating code, shortened; empty where it was not recorded."""
    return str((run.record.get("environment") or {}).get("code") or "")[:8]


def _marker_note(marker: Mapping[str, Any]) -> str:
    """How often the marker contradicted itself, as ``nondet.marking.repeat`` recorded it."""
    where = f" in the sandbox {marker['sandbox']}" if marker.get("sandbox") else ""
    return (
        f"Marker {marker['name']} {marker['version']}{where}: {marker['compared']} verdicts "
        f"repeated, {marker['differ']} differ."
    )
