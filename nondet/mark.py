"""Mark stored runs again, without generating: ``python -m nondet.mark RUN...``.

RUN is a run folder, a folder of runs or a study. The task is loaded again from what run.json
says of it; when its prompts or answers are no longer those of the run, the run is left alone.
Exit codes: 0 all marked, 1 a run could not be marked, 2 a mistake in the call.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nondet.marking import get_marker, mark_table
from nondet.marking.repeat import study_repeatability
from nondet.runs import RESPONSE_SCHEMA, TOKENS_SCHEMA, Run, RunWriter, read_run, write_table
from nondet.settings import SettingError, TaskSetting
from nondet.study import run_folders
from nondet.tasks import Task, load_task


@dataclass(frozen=True)
class Remarked:
    """What marking a run again came to. ``changed`` counts verdicts that are not what they were."""

    run: Run
    rows: int
    changed: int
    outcomes: dict[str, int]

    def line(self) -> str:
        """One line for the terminal."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return f"{self.run.folder}: {self.rows} marked, {self.changed} changed ({counts})"


def mark_run(run: Run, path: str | None = None) -> Remarked:
    """Mark a finished run again and write its tokens.parquet and run.json.

    path: where the task's data is now, if not where the run says. Raises SettingError when the
    task cannot be loaded or is another one now, ValueError for a run that is not complete.
    """
    if run.status != "complete":
        raise ValueError(f"{run.folder}: the run is {run.status}, only complete ones are marked")
    task = task_of(run, path)
    before = run.table()
    after = mark_table(task, before.select(RESPONSE_SCHEMA.names)).cast(TOKENS_SCHEMA)
    columns = ("outcome", "answer", "correct", "marking_note")
    old, new = (
        list(zip(*(t[c].to_pylist() for c in columns), strict=True)) for t in (before, after)
    )
    changed = sum(a != b for a, b in zip(old, new, strict=True))
    version = get_marker(task.marker).version
    stored = dict(run.record["task"])
    record = {
        **run.record,
        "task": {**stored, "marker": task.marker, "marker_version": version},
        "task_fingerprint": task.fingerprint(version),
    }
    if changed:
        write_table(run.folder / "tokens.parquet", after)
    if record != dict(run.record):
        RunWriter(run.folder).record(record)
    return Remarked(run, len(new), changed, dict(Counter(str(row[0]) for row in new)))


def task_of(run: Run, path: str | None = None) -> Task:
    """The task of a run, loaded again and checked to be the same by its fingerprint."""
    stored: dict[str, Any] = run.record["task"]
    if "setting" not in stored:
        raise SettingError("task", stored.get("name"), "that of a run made here; this one is not")
    setting = {**stored["setting"], **({"path": path} if path else {})}
    task = load_task(TaskSetting(**setting))
    if task.fingerprint(str(stored["marker_version"])) != run.record["task_fingerprint"]:
        valid = f"the task of {run.folder}; its prompts, answers or tests are others now"
        raise SettingError("task.path", setting["path"] or task.source, valid)
    return task


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nondet.mark", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run or study folders")
    parser.add_argument("--path", help="where the task's data is now (task.path)")
    parser.add_argument("--check", action="store_true", help="also mark each distinct text again")
    given = parser.parse_args(arguments)
    folders = [found for folder in given.runs for found in run_folders(folder)]
    if not folders:
        print(f"RUN={given.runs[0]}: must be a folder with runs", file=sys.stderr)
        return 2
    failed = 0
    for folder in folders:
        try:
            done = mark_run(read_run(folder), given.path)
            print(done.line())
            if given.check:
                compared, differ = study_repeatability([read_run(folder)])
                print(f"{folder}: {compared} verdicts repeated, {differ} differ")
                failed += differ > 0
        except (ValueError, FileNotFoundError) as error:  # SettingError is a ValueError
            print(error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
