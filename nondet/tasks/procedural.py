"""Tasks made by a generator of reasoning-gym, offline; item i depends on the seed and i alone."""

from __future__ import annotations

import json

from nondet.settings import Scalar, SettingError, TaskSetting
from nondet.tasks.base import Item, Task
from nondet.tasks.prompts import fill

SIZE = 64


def load_reasoning_gym(setting: TaskSetting) -> Task:
    """``task.generator`` by name, ``task.seed``, ``task.size``; all else is the generator's."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise SettingError(
            "task", setting.name, "used with its package: pip install 'llm-nondet[procedural]'"
        ) from error
    if setting.path is not None:
        raise SettingError("task.path", setting.path, "left out: the items are generated")
    options = {name: value for name, value in setting.options.items() if value is not None}
    generator = str(options.pop("generator", "chain_sum"))
    if generator not in DATASETS:
        raise SettingError("task.generator", generator, "one of " + ", ".join(sorted(DATASETS)))
    settings: dict[str, Scalar] = {"seed": 42, "size": SIZE, **options}
    try:
        data = reasoning_gym.create_dataset(generator, **settings)
        count = min(len(data), setting.limit or len(data))
        items = tuple(_item(generator, settings, data[place], place) for place in range(count))
    except (TypeError, ValueError, AssertionError) as error:
        raise SettingError("task.generator", generator, f"given what it knows ({error})") from error
    version = getattr(reasoning_gym, "__version__", "")
    return Task("reasoning_gym", items, "reasoning_gym", f"reasoning-gym {version}: {generator}")


def _item(
    generator: str, settings: dict[str, Scalar], entry: dict[str, object], place: int
) -> Item:
    answer = entry["answer"]
    meta = {"generator": generator, "options": json.dumps(settings, sort_keys=True), "index": place}
    prompt = fill("tagged", problem=str(entry["question"]))
    return Item(f"{generator}-{place}", prompt, None if answer is None else str(answer), meta)
