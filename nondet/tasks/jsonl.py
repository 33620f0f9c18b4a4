"""Anybody's own prompts: one JSON object a line, and the shipped default in the same form.

A line has ``prompt``, and may have ``id`` (default: its place, from 0), ``answer`` and any further
keys, which become the item's meta. ``task.marker`` names the marker of all items.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.source import only_options, read_lines

RECALL = Path(__file__).parent / "data" / "recall.jsonl"


def load_jsonl(setting: TaskSetting) -> Task:
    """The items of ``task.path``. Raises SettingError for the first line that is no item."""
    only_options(setting.options, {"marker": str})
    if setting.path is None:
        raise SettingError("task.path", None, "the path of a JSONL file with a prompt on each line")
    path = Path(setting.path)
    items = read_items(path, setting.limit)
    answers = any(item.answer is not None for item in items)
    marker = setting.options.get("marker") or ("integer" if answers else "none")
    return Task("jsonl", items, str(marker), source=str(path))


def load_recall(setting: TaskSetting) -> Task:
    """The shipped default: one or two facts to read, a number as answer."""
    only_options(setting.options, {})
    path = Path(setting.path) if setting.path else RECALL
    items = read_items(path, setting.limit)
    return Task("recall", items, "integer", source=path.name)


def read_items(path: Path, limit: int | None = None) -> tuple[Item, ...]:
    """All lines are checked, also those beyond ``limit``; the first ``limit`` are returned."""
    items = [_item(path, number, row) for number, row in read_lines(path)]
    if not items:
        raise SettingError("task.path", path, "a file with at least one item; it has none")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise SettingError("task.path", path, f"free of double ids; {item.id!r} is there twice")
        seen.add(item.id)
    return tuple(items[:limit])


def _item(path: Path, number: int, row: dict[str, Any]) -> Item:
    place = f"{path}:{number}"
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise SettingError("task.path", place, "an item with a non-empty text under 'prompt'")
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
        raise SettingError("task.path", place, "an item whose 'answer' is a text or a number")
    identity = str(row.get("id", number - 1))
    meta = {key: value for key, value in row.items() if key not in ("id", "prompt", "answer")}
    return Item(identity, prompt, None if answer is None else str(answer), meta)
