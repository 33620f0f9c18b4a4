"""Tasks by name. A loader turns a TaskSetting into items; it is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task

Loader = Callable[[TaskSetting], Task]

# name: module and function.
LOADERS = {
    "recall": "nondet.tasks.jsonl:load_recall",
    "jsonl": "nondet.tasks.jsonl:load_jsonl",
    "completions": "nondet.tasks.completions:load_completions",
    "gsm8k": "nondet.tasks.gsm8k:load_gsm8k",
    "math500": "nondet.tasks.math500:load_math500",
    "aime24": "nondet.tasks.aime:load_aime24",
    "aime25": "nondet.tasks.aime:load_aime25",
    "gpqa_diamond": "nondet.tasks.gpqa:load_gpqa",
    "mmlu_pro": "nondet.tasks.mmlu_pro:load_mmlu_pro",
    "humaneval": "nondet.tasks.humaneval:load_humaneval",
    "livecodebench_easy": "nondet.tasks.livecodebench:load_easy",
    "livecodebench_medium": "nondet.tasks.livecodebench:load_medium",
    "livecodebench_hard": "nondet.tasks.livecodebench:load_hard",
    "reasoning_gym": "nondet.tasks.procedural:load_reasoning_gym",
}

__all__ = ["LOADERS", "Item", "Task", "load_task"]


def load_task(setting: TaskSetting) -> Task:
    """The task of a setting. Raises SettingError for an unknown name and for bad data."""
    if setting.name not in LOADERS:
        raise SettingError("task", setting.name, "one of " + ", ".join(sorted(LOADERS)))
    module, function = LOADERS[setting.name].split(":")
    loader: Loader = getattr(import_module(module), function)
    task = loader(setting)
    if not task.items:
        raise SettingError("task", setting.name, "a task with at least one item; it has none")
    for item in task.items:
        try:
            f"{item.id}{item.prompt}".encode()
        except UnicodeEncodeError as error:
            valid = f"an item whose text can be written as UTF-8 ({error.reason})"
            raise SettingError("task.items", ascii(item.id), valid) from error
    return task
