"""Marking tables and stored runs, marking again, repeatability of the marker, pass@k."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from nondet.mark import main, mark_run
from nondet.marking import Answered, Mark, Outcome, get_marker, mark_table
from nondet.marking.passk import mean_pass_at_k, pass_at_k
from nondet.marking.repeat import check_study, repeatability, study_repeatability
from nondet.runs import MARK_SCHEMA, RESPONSE_SCHEMA, TOKENS_SCHEMA, RunWriter, read_run
from nondet.settings import SettingError, TaskSetting
from nondet.study import load_study
from nondet.tasks import Item, Task, load_task

TEXTS = ["The answer is 4.", "The answer is 5.", r"\boxed{4}", "no idea at all, sorry", "4 or 5"]


def responses(task: Task, texts: Sequence[str], finish: str = "stop") -> pa.Table:
    rows = [
        dict.fromkeys(RESPONSE_SCHEMA.names)
        | {"item_id": task.items[n % len(task.items)].id, "sample": n, "text": text,
           "finish_reason": finish, "tokens": [1, 2]}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, RESPONSE_SCHEMA)


def stored_run(folder: Path, path: Path, status: str = "complete") -> Path:
    """A run of a task of four items, marked."""
    path.write_text("".join(f'{{"prompt": "{n}?", "answer": 4}}\n' for n in range(4)))
    setting = {"name": "jsonl", "path": str(path), "limit": None, "options": {}}
    task = load_task(TaskSetting(**setting))
    version = get_marker(task.marker).version
    writer = RunWriter(folder)
    writer.start({
        "run_id": folder.name, "status": status, "repeat": 0, "factors": {"top_k": 5},
        "task": {"setting": setting, "name": "jsonl", "items": 4, "marker": task.marker,
                 "marker_version": version},
        "task_fingerprint": task.fingerprint(version),
    })  # fmt: skip
    writer.finish(mark_table(task, responses(task, TEXTS)))
    return folder


def test_table_gets_its_columns_in_order_and_keeps_the_rest() -> None:
    task = Task("t", (Item("a", "p", "4"), Item("b", "p", "5")), "integer")
    table = responses(task, TEXTS)
    marked = mark_table(task, table)
    assert marked.schema.equals(TOKENS_SCHEMA)
    assert marked.select(RESPONSE_SCHEMA.names).equals(table)
    assert marked["correct"].to_pylist() == [1, 1, 1, 0, 0]
    assert marked["answer"].to_pylist()[:3] == ["4", "5", "4"]
    assert mark_table(task, marked).equals(marked)


def test_equal_rows_are_marked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from nondet.marking import numbers

    seen: list[int] = []
    real = numbers.mark_number
    monkeypatch.setattr(numbers, "mark_number", lambda a: (seen.append(1), real(a))[1])
    task = Task("t", (Item("a", "p", "4"),), "integer")
    mark_table(task, responses(task, [*TEXTS, *TEXTS, TEXTS[0]]))
    assert len(seen) == len(TEXTS)


def test_the_token_limit_matters_only_where_there_is_no_answer() -> None:
    task = Task("t", (Item("a", "p", "4"),), "integer")
    marked = mark_table(task, responses(task, TEXTS, "length"))
    assert marked["outcome"].to_pylist() == [
        "right",
        "wrong",
        "right",
        "truncated_no_answer",
        "truncated_no_answer",
    ]


def test_nothing_is_marked_without_answers_and_after_errors() -> None:
    task = Task("t", (Item("a", "p"),), "none")
    for name in MARK_SCHEMA.names:
        assert mark_table(task, responses(task, TEXTS))[name].null_count == len(TEXTS)
    task = Task("t", (Item("a", "p", "4"),), "integer")
    assert mark_table(task, responses(task, TEXTS, "error"))["correct"].null_count == len(TEXTS)


def test_a_foreign_item_is_refused() -> None:
    task = Task("t", (Item("a", "p", "4"),), "integer")
    other = Task("t", (Item("b", "p", "4"),), "integer")
    with pytest.raises(ValueError, match="item a is not in task t"):
        mark_table(other, responses(task, TEXTS))


def test_marking_again_gives_the_same_and_repairs_what_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stored_run(tmp_path / "r1", tmp_path / "items.jsonl")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert mark_run(read_run(folder)).changed == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    good = read_run(folder).table()
    spoiled = good.set_column(
        good.schema.get_field_index("outcome"), "outcome", pa.array(["wrong"] * len(good))
    )
    RunWriter(folder).parts.mkdir()
    RunWriter(folder).finish(spoiled)
    assert main([str(folder)]) == 0
    assert "4 changed" in capsys.readouterr().out
    assert read_run(folder).table().equals(good)


def test_the_command_names_what_it_cannot_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "items.jsonl"
    good = stored_run(tmp_path / "runs" / "r1", path)
    stored_run(tmp_path / "runs" / "r2", path, status="failed")
    assert main([str(tmp_path / "runs"), "--check"]) == 1
    captured = capsys.readouterr()
    assert "50 verdicts repeated, 0 differ" in captured.out
    assert "the run is failed" in captured.err
    path.write_text('{"prompt": "another?", "answer": 4}\n')
    assert main([str(good)]) == 1
    assert "prompts, answers or tests are others now" in capsys.readouterr().err
    path.unlink()
    assert main([str(good)]) == 1
    assert "must be an existing JSONL file" in capsys.readouterr().err
    assert main([str(tmp_path / "nothing")]) == 2


def test_the_data_may_have_moved(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    folder = stored_run(tmp_path / "r1", path)
    moved = path.rename(tmp_path / "moved.jsonl")
    with pytest.raises(SettingError):
        mark_run(read_run(folder))
    assert mark_run(read_run(folder), str(moved)).changed == 0


class Fickle:
    """A marker that depends on what it was asked before: what the check must find."""

    name: ClassVar[str] = "fickle"
    version: ClassVar[str] = "1"

    def __init__(self, every: int) -> None:
        self.every, self.count = every, 0

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        self.count += 1
        flip = self.count % self.every == 0
        return [Mark(Outcome.WRONG if flip else Outcome.RIGHT, a.text) for a in answers]


def answers(count: int) -> list[Answered]:
    return [Answered(Item("i", "p", "4"), f"The answer is {n}.") for n in range(count)]


def test_repeatability_counts_texts_and_finds_a_marker_that_changes_its_mind() -> None:
    assert repeatability(get_marker("integer"), answers(80)) == (80, 0)
    assert repeatability(get_marker("integer"), answers(20)) == (60, 0)
    assert repeatability(get_marker("integer"), answers(20) * 5) == (60, 0)
    assert repeatability(get_marker("integer"), []) == (0, 0)
    assert repeatability(Fickle(2), answers(60)) == (60, 60)
    assert repeatability(Fickle(3), answers(20)) == (60, 20)


class ByPlace(Fickle):
    """Depends on the place in the batch."""

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        return [Mark(Outcome.RIGHT if n % 3 else Outcome.WRONG) for n, _ in enumerate(answers)]


def test_repeatability_finds_a_marker_that_depends_on_the_order() -> None:
    assert repeatability(ByPlace(1), answers(60))[1] > 0


def test_repeatability_of_stored_runs(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "r1", tmp_path / "items.jsonl")
    run = read_run(folder)
    assert study_repeatability([run]) == (50, 0)
    (tmp_path / "study.json").write_text('{"name": "s"}')
    version = get_marker("integer").version
    entry = {"name": "integer", "version": version, "compared": 50, "differ": 0}
    assert check_study(tmp_path, [run]) == entry
    assert json.loads((tmp_path / "study.json").read_text()) == {"name": "s", "marker": entry}
    said = f"Marker integer {version}: 50 verdicts repeated, 0 differ."
    assert load_study([tmp_path]).notes == (said,)
    assert check_study(tmp_path, []) is None
    good = read_run(folder).table()
    column = good.schema.get_field_index("outcome")
    spoiled = good.set_column(column, "outcome", pa.array(["wrong"] * len(good)))
    RunWriter(folder).parts.mkdir()
    RunWriter(folder).finish(spoiled)
    assert study_repeatability([read_run(folder)]) == (50, 40)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_runs_that_contradict_each_other_are_found_in_any_order(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    folders = [stored_run(tmp_path / name, tmp_path / "items.jsonl") for name in ("r1", "r2")]
    table = read_run(folders[1]).table()
    rows = table.to_pylist()
    rows[0] |= {"outcome": "wrong", "answer": "9", "correct": 0}
    RunWriter(folders[1]).parts.mkdir()
    RunWriter(folders[1]).finish(pa.Table.from_pylist(rows, table.schema))
    runs = [read_run(folders[place]) for place in order]
    compared, differ = study_repeatability(runs)
    assert compared == 51
    # Marked again, the text is right: the wrong verdict differs from it and from the other run's.
    assert differ == (1 if order == (0, 1) else 11)


def test_verdicts_of_an_older_marker_are_not_held_against_it(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "r1", tmp_path / "items.jsonl")
    table = read_run(folder).table()
    column = table.schema.get_field_index("outcome")
    RunWriter(folder).parts.mkdir()
    RunWriter(folder).finish(table.set_column(column, "outcome", pa.array(["wrong"] * len(table))))
    record = json.loads((folder / "run.json").read_text())
    assert study_repeatability([read_run(folder)])[1] > 0
    record["task"]["marker_version"] = "integer-0"
    (folder / "run.json").write_text(json.dumps(record))
    assert study_repeatability([read_run(folder)]) == (50, 0)


@pytest.mark.parametrize("marker", ["integer", "math", "choice"])
def test_markers_repeat_themselves_on_random_texts(marker: str) -> None:
    draw = random.Random(7)
    words = [
        "\\boxed{",
        "}",
        "answer is",
        "Answer:",
        "4",
        "B",
        "=",
        ".",
        "$",
        "{",
        "\n",
        "1/2",
        "x",
    ]
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(60)]
    item = Item("i", "p", "B" if marker == "choice" else "4")
    asked = [Answered(item, text, draw.random() < 0.3) for text in texts]
    compared, differ = repeatability(get_marker(marker), asked)
    assert compared >= 50
    assert differ == 0


def brute(n: int, right: int, k: int) -> float:
    draws = list(itertools.combinations([1] * right + [0] * (n - right), k))
    return sum(map(any, draws)) / len(draws)


def test_pass_at_k_is_the_share_of_draws_with_a_right_one() -> None:
    for n in range(1, 8):
        for right in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, right, k) == pytest.approx(brute(n, right, k), abs=1e-15)
    assert pass_at_k(1000, 1, 1) == pytest.approx(0.001, abs=1e-15)
    for bad in ((0, 0, 1), (3, 4, 1), (3, 1, 4), (3, 1, 0), (3, -1, 1)):
        with pytest.raises(ValueError, match="needs 0 <= right"):
            pass_at_k(*bad)


def test_mean_pass_at_k_leaves_out_what_the_marker_does_not_know() -> None:
    ids = ["a", "a", "b", "b", "c", "c"]
    assert mean_pass_at_k(ids, [1, 0, 1, 1, None, None]) == (0.75, 2, 1)
    assert mean_pass_at_k(ids, [1, 0, 1, None, 0, 0], 2) == (0.5, 2, 1)
    assert mean_pass_at_k(ids, [None] * 6) == (None, 0, 3)


def test_record_says_which_marker_judged(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "r1", tmp_path / "items.jsonl")
    record = json.loads((folder / "run.json").read_text())
    old = "integer-0"
    task = load_task(TaskSetting(**record["task"]["setting"]))
    record["task"]["marker_version"] = old
    record["task_fingerprint"] = task.fingerprint(old)
    (folder / "run.json").write_text(json.dumps(record))
    mark_run(read_run(folder))
    fresh = read_run(folder).record
    version = get_marker("integer").version
    assert fresh["task"]["marker_version"] == version
    assert fresh["task_fingerprint"] == task.fingerprint(version)
