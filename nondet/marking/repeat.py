"""Does the marker say the same of the same text? Checked in every study, not believed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nondet.marking.base import Answered, Mark, Marker
from nondet.marking.programs import CodeMarker
from nondet.marking.registry import get_marker
from nondet.runs import Run, write_json
from nondet.settings import TaskSetting
from nondet.tasks import load_task

MINIMUM = 50
Key = tuple[str, str, bool]


def key_of(answered: Answered) -> Key:
    """What a verdict may depend on: the item, the text, and whether it was cut."""
    return answered.item.id, answered.text, answered.truncated


def repeatability(
    marker: Marker,
    answers: Sequence[Answered],
    minimum: int = MINIMUM,
    known: Mapping[Key, Mark] | None = None,
) -> tuple[int, int]:
    """Mark each distinct text once more: how many were compared, how many verdicts differ.

    known: verdicts that are there already, by ``key_of``; without them the texts are marked for
    the first time here. Fewer texts than ``minimum`` are marked again until there are as many
    comparisons. The order is reversed every time, so that a verdict that depends on what was
    marked before shows as well. No answers at all give (0, 0).
    """
    distinct = list({key_of(answered): answered for answered in answers}.values())
    if not distinct:
        return 0, 0
    first = dict(known or {})
    new = [answered for answered in distinct if key_of(answered) not in first]
    first.update(zip(map(key_of, new), marker.mark(new), strict=True))
    compared = differ = 0
    while compared < max(minimum, len(distinct)):
        distinct.reverse()
        for answered, mark in zip(distinct, marker.mark(distinct), strict=True):
            differ += mark != first[key_of(answered)]
        compared += len(distinct)
    return compared, differ


def study_repeatability(runs: Sequence[Run], minimum: int = MINIMUM) -> tuple[int, int]:
    """The same for the texts of finished runs of one task, against the verdicts stored there.

    Verdicts that two runs store for the same text and that contradict each other count as one
    comparison each. Verdicts of another version of the marker are not compared.

    Raises SettingError when the task of the runs cannot be loaded here.
    """
    if not runs:
        return 0, 0
    task = load_task(TaskSetting(**runs[0].record["task"]["setting"]))
    if task.marker == "none":
        return 0, 0
    items = {item.id: item for item in task.items}
    marker = get_marker(task.marker)
    answers, known, contradicted = [], dict[Key, Mark](), 0
    for run in runs:
        same_marker = run.record["task"].get("marker_version") == marker.version
        names = ["item_id", "text", "finish_reason", "outcome", "answer", "marking_note"]
        for row in run.table(names).to_pylist():
            if row["outcome"] is None or row["item_id"] not in items:
                continue
            answered = Answered(
                items[row["item_id"]], row["text"], row["finish_reason"] == "length"
            )
            answers.append(answered)
            mark = Mark(row["outcome"], row["answer"], row["marking_note"])
            if same_marker:
                contradicted += known.setdefault(key_of(answered), mark) != mark
    compared, differ = repeatability(marker, answers, minimum, known)
    return compared + contradicted, differ + contradicted


def check_study(folder: Path, runs: Sequence[Run]) -> dict[str, object] | None:
    """Check the marker on all texts of a study and enter the result in its study.json.

    The entry ``marker`` holds name, version, compared and differ, and for programs the sandbox
    they ran in. None, and no entry, where there is nothing to mark. Raises SettingError as
    ``study_repeatability``.
    """
    compared, differ = study_repeatability(runs)
    if not compared:
        return None
    stored = runs[0].record["task"]
    marker = get_marker(stored["marker"])
    found: dict[str, object] = {
        "name": stored["marker"],
        "version": marker.version,
        "compared": compared,
        "differ": differ,
    }
    if isinstance(marker, CodeMarker):
        found["sandbox"] = marker.confinement()
    listed = folder / "study.json"
    record = json.loads(listed.read_text()) if listed.exists() else {}
    write_json(listed, {**record, "marker": found})
    return found
