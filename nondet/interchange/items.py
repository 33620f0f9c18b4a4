"""Prompts and right answers of a stored run. A run keeps only their hashes; where its task can be
loaded again and is still the same, exports hold them too."""

from __future__ import annotations

from nondet.marking import get_marker
from nondet.runs import Run
from nondet.settings import SettingError, TaskSetting
from nondet.tasks import Item, load_task


def items_of(run: Run) -> dict[str, Item]:
    """Items by id; empty when the task is not at hand or has changed since."""
    record = run.record.get("task") or {}
    setting = record.get("setting")
    if not isinstance(setting, dict):
        return {}
    try:
        task = load_task(TaskSetting(**setting))
        version = get_marker(task.marker).version
    except (SettingError, OSError, TypeError, ValueError, ImportError):
        return {}
    if task.fingerprint(version) != run.record.get("task_fingerprint"):
        return {}
    return {item.id: item for item in task.items}
