"""GPQA diamond: 198 graduate-level questions with four options (Rein et al. 2023; gated).

The order of the options follows from the item alone, so that every process asks the same question.
The paper's loader shuffles with a generator that is not seeded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.hub import HUB_OPTIONS, HubData, load_rows
from nondet.tasks.prompts import fill
from nondet.tasks.source import only_options

OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
DATA = HubData("Idavidrein/gpqa", "train", ("Question", *OPTIONS), config="gpqa_diamond")
LETTERS = "ABCD"


def load_gpqa(setting: TaskSetting) -> Task:
    """All questions in the order of the data set."""
    only_options(setting.options, HUB_OPTIONS)
    rows, source = load_rows(setting, DATA)
    items = []
    for number, row in enumerate(rows[: setting.limit]):
        texts = [str(row[name]).strip() for name in OPTIONS]
        question = str(row["Question"]).strip()
        if len(set(texts)) < len(texts):
            raise SettingError("task.path", source, f"rows with four options; see row {number + 1}")
        placed = shuffled(question, texts)
        listed = ", ".join(f"{letter}) {placed[i]}" for i, letter in enumerate(LETTERS))
        items.append(
            Item(
                str(row.get("Record ID") or f"gpqa-{number}"),
                fill("letter", question=question, options=listed),
                LETTERS[placed.index(texts[0])],
                {"letters": LETTERS},
            )
        )
    return Task("gpqa_diamond", tuple(items), "choice", source)


def shuffled(question: str, options: Sequence[str]) -> list[str]:
    """The options in an order drawn from the question: sorted by the hash of both together.

    No random generator, so no version of one can change a prompt.
    """
    return sorted(options, key=lambda text: hashlib.sha256(f"{question}\0{text}".encode()).digest())
