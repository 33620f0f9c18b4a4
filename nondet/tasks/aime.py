"""AIME 2024 and 2025: 30 problems each, the answer a whole number from 0 to 999."""

from __future__ import annotations

from typing import Any

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, check_columns, load_rows
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options

# The paper's rows: those of 2024 in a validation set of three years.
AIME24 = HubData("AI-MO/aimo-validation-aime", "train", ("problem", "answer"))
AIME25 = HubData("MathArena/aime_2025", "train", ("problem", "answer"))
ORDERS = {"before": "boxed", "after": "boxed_after"}
# Names that published copies give the same columns.
_ALIASES = {
    "problem": ("problem", "Problem", "question", "Question"),
    "answer": ("answer", "Answer"),
    "id": ("id", "ID", "problem_idx"),
    "url": ("url", "URL"),
}


def load_aime24(setting: TaskSetting) -> Task:
    """The 30 problems of 2024; rows that say by their url that they are of another year go."""
    return _load(setting, "aime24", AIME24, "2024")


def load_aime25(setting: TaskSetting) -> Task:
    """The 30 problems of 2025."""
    return _load(setting, "aime25", AIME25, "2025")


def _load(setting: TaskSetting, name: str, data: HubData, year: str) -> Task:
    only_options(setting.options, {**HUB_OPTIONS, "instruction": str})
    order = str(setting.options.get("instruction") or "before")
    if order not in ORDERS:
        raise SettingError("task.instruction", order, "one of " + ", ".join(ORDERS))
    found, source = load_rows(setting, data, check=False)
    rows = [_plain(row) for row in found]
    rows = [row for row in rows if not row["url"] or year in row["url"]]
    check_columns(rows, ("problem", "answer"), setting.path or source)
    items = tuple(
        Item(
            f"{name}-{number if row['id'] is None else row['id']}",
            fill(ORDERS[order], problem=row["problem"]),
            str(row["answer"]).strip(),
        )
        for number, row in enumerate(rows[: setting.limit])
    )
    return Task(name, items, "math", source)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: next((row[alias] for alias in aliases if row.get(alias) is not None), None)
        for name, aliases in _ALIASES.items()
    }
