"""MMLU-Pro: multiple choice with up to ten options, all or one category (Wang et al. 2024)."""

from __future__ import annotations

from typing import Any

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, load_rows
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options

COLUMNS = ("question", "options", "answer", "category")
DATA = HubData("TIGER-Lab/MMLU-Pro", "test", COLUMNS)
LETTERS = "ABCDEFGHIJ"


def load_mmlu_pro(setting: TaskSetting) -> Task:
    """The test set, or ``task.category`` of it (one name, or several with a +)."""
    only_options(setting.options, {**HUB_OPTIONS, "category": str})
    rows, source = load_rows(setting, DATA)
    asked = setting.options.get("category")
    if asked:
        known = sorted({str(row["category"]) for row in rows})
        for name in str(asked).split("+"):
            if name not in known:
                raise SettingError("task.category", name, "one of " + ", ".join(known))
        rows = [row for row in rows if row["category"] in str(asked).split("+")]
    items = tuple(_item(number, row, source) for number, row in enumerate(rows[: setting.limit]))
    return Task("mmlu_pro", items, "choice", source)


def _item(number: int, row: dict[str, Any], source: str) -> Item:
    options, answer = [str(text) for text in row["options"]], str(row["answer"]).strip()
    letters = LETTERS[: len(options)]
    if not 2 <= len(options) <= len(LETTERS) or answer not in letters:
        place = f"row {number + 1} has {len(options)} options and the answer {answer!r}"
        raise SettingError("task.path", source, f"rows with 2 to 10 options and a letter; {place}")
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(letters, options, strict=True))
    prompt = fill("options", question=str(row["question"]).strip(), options=listed)
    identity = row.get("question_id")
    name = f"mmlu_pro-{number if identity is None else identity}"
    return Item(name, prompt, answer, {"letters": letters, "category": row["category"]})
