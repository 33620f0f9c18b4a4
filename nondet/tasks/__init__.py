"""Tasks by name. A loader turns a TaskSetting into items; it is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from nondet.settings import SettingError, TaskSetting
from nondet.tasks.base import Item, Task

Loader = Callable[[TaskSetting], Task]

# name: module and function.
LOADERS = {
    "arithmetic": "nondet.tasks.jsonl:load_arithmetic",
    "jsonl": "nondet.tasks.jsonl:load_jsonl",
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
    return task
