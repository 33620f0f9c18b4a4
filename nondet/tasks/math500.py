"""MATH-500: 500 competition problems (Hendrycks et al. 2021; subset of Lightman et al. 2023)."""

from __future__ import annotations

from nondet.settings import TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, load_rows
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options

DATA = HubData("HuggingFaceH4/MATH-500", "test", ("problem", "answer"))


def load_math500(setting: TaskSetting) -> Task:
    """All problems in the order of the data set, with the paper's prompt."""
    only_options(setting.options, HUB_OPTIONS)
    rows, source = load_rows(setting, DATA)
    items = tuple(
        Item(
            str(row.get("unique_id") or f"math500-{number}"),
            fill("boxed", problem=row["problem"]),
            str(row["answer"]),
        )
        for number, row in enumerate(rows[: setting.limit])
    )
    return Task("math500", items, "math", source)
