"""LiveCodeBench release v2: 182 easy, 206 medium, 123 hard problems (Jain et al. 2024).

The data set has a loader script, which ``datasets`` no longer runs; its JSONL files are read
directly. A release is the first so many of them. ``task.path`` is one such file or a folder with
test.jsonl, test2.jsonl, ... in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, check_columns, resolve, unreachable
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options, read_lines

COLUMNS = ("question_id", "question_content", "difficulty", "public_test_cases")
DATA = HubData("livecodebench/code_generation_lite", "test", COLUMNS)
RELEASES = {f"release_v{n}": n for n in range(1, 7)}


def load_easy(setting: TaskSetting) -> Task:
    """The easy problems."""
    return _load(setting, "easy")


def load_medium(setting: TaskSetting) -> Task:
    """The medium problems."""
    return _load(setting, "medium")


def load_hard(setting: TaskSetting) -> Task:
    """The hard problems."""
    return _load(setting, "hard")


def _load(setting: TaskSetting, difficulty: str) -> Task:
    only_options(setting.options, {**HUB_OPTIONS, "release": str, "starter_code": bool})
    release = str(setting.options.get("release") or "release_v2")
    if release not in RELEASES:
        raise SettingError("task.release", release, "one of " + ", ".join(RELEASES))
    starter = setting.options.get("starter_code") is not False
    files, source = _files(setting, RELEASES[release])
    items = [_item(row, starter) for row in _rows(files, difficulty)]
    if not items:
        raise SettingError("task.path", source, f"files with {difficulty} problems; there is none")
    return Task(f"livecodebench_{difficulty}", tuple(items[: setting.limit]), "code", source)


def _files(setting: TaskSetting, count: int) -> tuple[list[Path], str]:
    names = ["test.jsonl", *(f"test{n}.jsonl" for n in range(2, count + 1))]
    if setting.path is None:
        return _download(setting, names)
    path = Path(setting.path)
    files = [path / name for name in names] if path.is_dir() else [path]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise SettingError("task.path", path, f"a JSONL file or a folder with {', '.join(names)}")
    return files, path.name


def _download(setting: TaskSetting, names: list[str]) -> tuple[list[Path], str]:
    from huggingface_hub import hf_hub_download

    hub, revision = str(setting.options.get("hub") or DATA.id), setting.options.get("revision")
    commit, online = resolve(hub, str(revision) if revision else None, DATA)
    try:
        paths = [
            hf_hub_download(
                hub, name, repo_type="dataset", revision=commit, local_files_only=not online
            )
            for name in names
        ]
    except Exception as error:  # network, authorisation, no such file: the user acts alike
        raise unreachable(hub, DATA, error) from error
    return [Path(path) for path in paths], f"{hub}@{commit}:{'+'.join(names)}"


def _rows(files: list[Path], difficulty: str) -> Iterator[dict[str, Any]]:
    """Rows of one difficulty; the files are larger than memory should hold, so one at a time."""
    for path in files:
        for number, row in read_lines(path):
            check_columns([row], COLUMNS, f"{path}:{number}")
            if row["difficulty"] == difficulty:
                yield row


def _item(row: dict[str, Any], starter: bool) -> Item:
    public, entry = row["public_test_cases"], None
    if any(case.get("testtype") == "functional" for case in json.loads(public)):
        metadata = row.get("metadata") or "{}"
        entry = json.loads(metadata).get("func_name")
        if not entry:
            raise SettingError("task.path", row["question_id"], "a problem with its func_name")
    problem = row["question_content"]
    if entry and starter and row.get("starter_code"):
        problem = f"{problem}\n\n{row['starter_code']}"
    prompt = fill("function" if entry else "stdin", problem=problem)
    meta = {"entry": entry, "public": public, "private": row.get("private_test_cases") or ""}
    return Item(str(row["question_id"]), prompt, None, meta)
