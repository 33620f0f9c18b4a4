"""One prompt many times over: how many different completions does it get?

With ``neighbours``, other prompts stand at random places among the copies, so that the waves of a
run differ in what is in them. Order and neighbours are drawn from ``order_seed``: every run of a
study sees the same. Ids tell them apart: ``copy-0000``, ``neighbour-0000``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nondet.backends.load import WORDS
from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.source import only_options

COPY = "copy"
NEIGHBOUR = "neighbour"
# The prompt of the Thinking Machines post (see experiments/tml2025).
PROMPT = "Tell me about Richard Feynman"
# Words of a neighbour.
SHORTEST, LONGEST = 2, 60


def load_completions(setting: TaskSetting) -> Task:
    """``copies`` times ``prompt`` among ``neighbours`` random prompts. Raises SettingError."""
    options: dict[str, Any] = {"prompt": PROMPT, "copies": 100, "neighbours": 0, "order_seed": 0}
    only_options(setting.options, {name: type(value) for name, value in options.items()})
    options.update({name: v for name, v in setting.options.items() if v is not None})
    for name, low in (("copies", 1), ("neighbours", 0), ("order_seed", 0)):
        if options[name] < low:
            raise SettingError(f"task.{name}", options[name], f"a whole number of at least {low}")
    if not options["prompt"].strip():
        raise SettingError("task.prompt", options["prompt"], "a non-empty text")
    items = [Item(f"{COPY}-{number:04d}", options["prompt"]) for number in range(options["copies"])]
    rng = np.random.default_rng(options["order_seed"])
    for number in range(options["neighbours"]):
        words = rng.choice(WORDS, size=int(rng.integers(SHORTEST, LONGEST + 1)))
        items.append(Item(f"{NEIGHBOUR}-{number:04d}", " ".join(words)))
    if options["neighbours"]:
        items = [items[place] for place in rng.permutation(len(items))]
    return Task("completions", tuple(items[: setting.limit]), "none")
