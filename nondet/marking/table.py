"""Marking a table of responses: each distinct text once."""

from __future__ import annotations

import pyarrow as pa

from nondet.marking.base import Answered, Mark
from nondet.marking.registry import get_marker
from nondet.runs import MARK_SCHEMA
from nondet.tasks.base import Task


def mark_table(task: Task, table: pa.Table) -> pa.Table:
    """The RESPONSE_SCHEMA table with the MARK_SCHEMA columns added, rows in the same order.

    Equal (item, text, truncated) are marked once. A task with the marker ``none`` and responses
    that ended in an error get null columns. Raises ValueError for an item the task does not have.
    """
    items = {item.id: item for item in task.items}
    columns = (table[name].to_pylist() for name in ("item_id", "text", "finish_reason"))
    rows = list(zip(*columns, strict=True))
    distinct: dict[tuple[str, str, str], Mark | None] = {}
    for key in rows:
        if key[0] not in items:
            raise ValueError(f"item {key[0]} is not in task {task.name}")
        distinct.setdefault(key)
    asked = [key for key in distinct if task.marker != "none" and key[2] != "error"]
    answers = [Answered(items[item], text, finish == "length") for item, text, finish in asked]
    for key, mark in zip(asked, get_marker(task.marker).mark(answers), strict=True):
        distinct[key] = mark
    marks = [distinct[key] for key in rows]
    kept = table.drop_columns([n for n in MARK_SCHEMA.names if n in table.column_names])
    for field, values in zip(MARK_SCHEMA, _columns(marks), strict=True):
        kept = kept.append_column(field, pa.array(values, field.type))
    return kept


def _columns(marks: list[Mark | None]) -> tuple[list[object], ...]:
    answers: list[object] = [mark.answer if mark else None for mark in marks]
    outcomes: list[object] = [mark.outcome.value if mark else None for mark in marks]
    correct: list[object] = [mark.correct if mark else None for mark in marks]
    notes: list[object] = [mark.note if mark else None for mark in marks]
    return answers, outcomes, correct, notes
