"""Many settings as runs of studies, several at a time, on machines without Hydra.

Settings are planned, stored, resumed and recorded exactly as ``nondet.run`` does it; a second call
skips what is done. Bits do not depend on what else the machine does; times do, so nothing that
runs here beside others is a measurement of speed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

from nondet.backends.base import GROUP
from nondet.execute import execute
from nondet.plan import Plan, plan_run
from nondet.progress import Lines
from nondet.runs import write_json
from nondet.settings import Setting, SettingError, one_line

ROOT = Path(__file__).parents[1]


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


def run_all(studies: Mapping[Path, Sequence[Setting]], name: str, together: int = 1) -> int:
    """Run the settings of all studies, ``together`` at a time. Returns how many failed.

    studies: each folder gets study.json and runs/, its runs in order. A setting that cannot even
    be planned is printed with its reason and counts as failed.
    """
    announce()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    plans: list[tuple[Path, Plan]] = []
    failed = 0
    for folder, settings in studies.items():
        folder.mkdir(parents=True, exist_ok=True)
        for setting in settings:
            try:
                plans.append((folder, plan_run(setting)))
            except (SettingError, OSError) as error:
                print(f"{name}: cannot run, {one_line(error)}", flush=True)
                failed += 1
        # Written first: a study that is cut short can be read as it is.
        ids = list(dict.fromkeys(plan.run_id for own, plan in plans if own == folder))
        write_json(folder / "study.json", {"name": folder.name, "seed": 0, "runs": ids})

    def one(job: tuple[Path, Plan]) -> str:
        plan, store = job[1], job[0] / "runs"
        began = time.perf_counter()
        status = execute(plan, store, Lines(), label(plan.setting))
        print(f"{name}: {label(plan.setting)}: {status}, {time.perf_counter() - began:.0f} s")
        if status == "failed":
            print(json.loads((store / plan.run_id / "run.json").read_text())["reason"])
        sys.stdout.flush()
        return status

    with ThreadPoolExecutor(together) as pool:
        statuses = list(pool.map(one, plans))
    return failed + statuses.count("failed")


def label(setting: Setting) -> str:
    """A run in the log: what usually varies, and the options given."""
    words = [setting.backend.name, setting.dtype, setting.kernels, setting.attention]
    words += [f"{setting.batching} {setting.batch_size}", f"padding {setting.padding}"]
    words += [f"{key} {value}" for key, value in setting.backend.options.items()]
    words += [f"{setting.task.name} {dict(setting.task.options) or ''}".strip()]
    return ", ".join(words + ([f"repeat {setting.repeat}"] if setting.repeat else []))
