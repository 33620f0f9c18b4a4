"""GSM8K: grade-school word problems with a whole number as answer (Cobbe et al. 2021)."""

from __future__ import annotations

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, load_rows
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options

DATA = HubData("openai/gsm8k", "test", ("question", "answer"), config="main")


def load_gsm8k(setting: TaskSetting) -> Task:
    """The test set, 1,319 items; the answer is what follows the #### of the solution."""
    only_options(setting.options, HUB_OPTIONS)
    rows, source = load_rows(setting, DATA)
    items = []
    for number, row in enumerate(rows[: setting.limit]):
        _solution, mark, answer = row["answer"].rpartition("####")
        if not mark or not answer.strip():
            raise SettingError("task.path", source, f"GSM8K rows; row {number + 1} has no ####")
        prompt = fill("boxed", problem=row["question"])
        items.append(Item(f"gsm8k-{number}", prompt, answer.strip().replace(",", "")))
    return Task("gsm8k", tuple(items), "math", source)
