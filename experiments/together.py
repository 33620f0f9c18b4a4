"""Many settings as runs of studies, several at a time, on machines without Hydra.

Settings are planned, stored, resumed and recorded exactly as ``nondet.run`` does it; a second call
skips what is done. Where there are GPUs, each run sees those of its seat alone: ``together`` runs
share a GPU, and runs on several GPUs follow when those on fewer are done. Times depend on what
else the machine does, so nothing that runs here beside others is a measurement of speed; bits
should not, which is what the repeats of a study are for. An engine whose packages lie in a folder
of their own is reached through an interpreter (``backend.python``) that is a script which sets
PYTHONPATH.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from queue import SimpleQueue

from nondet.backends.base import GROUP
from nondet.environment import gpu_names
from nondet.execute import execute
from nondet.plan import Plan, plan_run
from nondet.progress import Lines
from nondet.runs import read_run, write_json
from nondet.settings import Setting, SettingError, one_line

ROOT = Path(__file__).parents[1]
# The least seconds in which a run can start and end; with fewer left none is begun.
SHORTEST_S = 45.0


@dataclass(frozen=True)
class Outcome:
    """What became of one setting: complete, skipped (it was there), failed, refused (it cannot be
    planned) or not run (the time was up); the reason of the last three."""

    status: str
    reason: str | None = None
    run_id: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class _Job:
    folder: Path
    plan: Plan


def announce() -> None:
    """Make the backends known to a checkout that is not installed (PYTHONPATH=. alone)."""
    if any(entry.name == "hf" for entry in entry_points(group=GROUP)):
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = Path(tempfile.mkdtemp()) / f"{project['name'].replace('-', '_')}-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n"
    )
    named = project["entry-points"][GROUP]
    lines = [f"{name} = {target}" for name, target in named.items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")
    sys.path.append(str(folder.parent))


def run_all(
    studies: Mapping[Path, Sequence[Setting]],
    name: str,
    together: int | Mapping[int, int] = 1,
    seconds: float | None = None,
) -> dict[Path, list[Outcome]]:
    """Run the settings of all studies; what became of each, in their order.

    studies: each folder gets study.json and runs/. together: how many runs share a seat, for all
    runs or by their number of GPUs. seconds: no run is begun later, and one in hand is ended then.
    """
    announce()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    ends = time.monotonic() + seconds if seconds is not None else None
    jobs: dict[tuple[Path, int], _Job] = {}
    outcomes: dict[tuple[Path, int], Outcome] = {}
    for folder, settings in studies.items():
        folder.mkdir(parents=True, exist_ok=True)
        for place, setting in enumerate(settings):
            try:
                jobs[folder, place] = _Job(folder, plan_run(setting))
            except (SettingError, OSError) as error:
                outcomes[folder, place] = Outcome("refused", one_line(error))
                print(f"{name}: cannot run, {one_line(error)}", flush=True)
        # Written first: a study that is cut short can be read as it is.
        ids = list(dict.fromkeys(job.plan.run_id for job in jobs.values() if job.folder == folder))
        write_json(folder / "study.json", {"name": folder.name, "seed": 0, "runs": ids})
    for gpus in sorted({job.plan.setting.gpus for job in jobs.values()}):
        own = {key: job for key, job in jobs.items() if job.plan.setting.gpus == gpus}
        share = together if isinstance(together, int) else together.get(gpus, 1)
        outcomes |= _share_seats(own, seats(gpus), share, name, ends)
    return {folder: [outcomes[folder, n] for n in range(len(s))] for folder, s in studies.items()}


def split_words(words: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of the words NAME=VALUE, and all other words; a path may hold a "=" as well."""
    taken = [word for word in words if word.partition("=")[0] in names and "=" in word]
    given = {name: value for name, _, value in (word.partition("=") for word in taken)}
    return given, [word for word in words if word not in taken]


def failures(found: Mapping[Path, Sequence[Outcome]]) -> int:
    """How many settings have no answers."""
    return sum(one.status not in ("complete", "skipped") for own in found.values() for one in own)


def seats(gpus: int) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each group of so many neighbouring GPUs; [None] without any."""
    there = len(gpu_names())
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(number) for number in range(there)]
    groups = [names[n : n + gpus] for n in range(0, there - gpus + 1, gpus)]
    return [",".join(group) for group in groups] or [None]


def _share_seats(
    jobs: Mapping[tuple[Path, int], _Job],
    places: Sequence[str | None],
    share: int,
    name: str,
    ends: float | None,
) -> dict[tuple[Path, int], Outcome]:
    """Run jobs, each in the next seat that is free; all of them when it returns."""
    free: SimpleQueue[str | None] = SimpleQueue()
    for seat in list(places) * share:
        free.put(seat)

    def one(job: _Job) -> Outcome:
        seat = free.get()
        try:
            return _run(job, seat, name, ends)
        except Exception as error:  # the others go on
            return Outcome("failed", f"{type(error).__name__}: {one_line(error)}")
        finally:
            free.put(seat)

    with ThreadPoolExecutor(len(places) * share) as pool:
        return dict(zip(jobs, pool.map(one, jobs.values()), strict=True))


def _run(job: _Job, seat: str | None, name: str, ends: float | None) -> Outcome:
    plan, store, began = job.plan, job.folder / "runs", time.monotonic()
    words = label(plan.setting)
    if ends is not None:
        left = ends - began
        # A run that is there costs no time, and is no gap because others took it all.
        if left < SHORTEST_S and not _there(store / plan.run_id):
            print(f"{name}: {words}: not run, the time was up", flush=True)
            return Outcome("not run", "the time was up")
        limit = min(max(left, SHORTEST_S), plan.setting.timeout_s or math.inf)
        plan = replace(plan, setting=replace(plan.setting, timeout_s=limit))
    visible = {} if seat is None else {"CUDA_VISIBLE_DEVICES": seat}
    status = execute(plan, store, Lines(), words, visible)
    seconds = round(time.monotonic() - began, 1)
    reason = None
    if status == "failed":
        reason = str(json.loads((store / plan.run_id / "run.json").read_text())["reason"])
    print(
        f"{name}: {words}: {status}, {seconds:.0f} s{'; ' + reason if reason else ''}", flush=True
    )
    return Outcome(status, reason, plan.run_id, seconds)


def _there(folder: Path) -> bool:
    """Whether a run is complete already."""
    return (folder / "run.json").exists() and read_run(folder).status == "complete"


def label(setting: Setting) -> str:
    """A run in the log: what usually varies, and the options given."""
    words = [setting.backend.name, setting.dtype, setting.kernels, setting.attention]
    words += [f"{setting.batching} {setting.batch_size}", f"padding {setting.padding}"]
    words += [f"{setting.gpus} GPUs"] if setting.gpus > 1 else []
    words += [f"{key} {value}" for key, value in setting.backend.options.items()]
    words += [f"{setting.task.name} {dict(setting.task.options) or ''}".strip()]
    return ", ".join(words + ([f"repeat {setting.repeat}"] if setting.repeat else []))
