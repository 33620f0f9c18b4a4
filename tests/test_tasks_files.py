"""JSONL tasks, the registry, and every mistake a user can make with them: one line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nondet.settings import SettingError, TaskSetting
from nondet.tasks import LOADERS, load_task


def write(folder: Path, *lines: object) -> str:
    path = folder / "items.jsonl"
    text = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{line}\n" for line in text))
    return str(path)


def test_items_keep_order_ids_and_meta(tmp_path: Path) -> None:
    rows = [{"prompt": "a?", "answer": 7, "level": "x"}, {"prompt": "b?", "id": "second"}]
    task = load_task(TaskSetting("jsonl", write(tmp_path, rows[0], "", rows[1])))
    assert [item.id for item in task.items] == ["0", "second"]
    assert [item.answer for item in task.items] == ["7", None]
    assert task.items[0].meta == {"level": "x"}
    assert task.marker == "integer"


def test_without_answers_nothing_is_marked(tmp_path: Path) -> None:
    assert load_task(TaskSetting("jsonl", write(tmp_path, {"prompt": "a"}))).marker == "none"


def test_limit_keeps_the_first(tmp_path: Path) -> None:
    path = write(tmp_path, *({"prompt": f"{n}?"} for n in range(5)))
    assert [i.prompt for i in load_task(TaskSetting("jsonl", path, 2)).items] == ["0?", "1?"]


BAD = {
    "no JSON": ([{"prompt": "a"}, "{oops"], ":2: must be one JSON object a line"),
    "no object": (["[1]"], ":1: must be one JSON object a line, not list"),
    "no prompt": ([{"prompt": "a"}, {"answer": 1}], ":2: must be an item with a non-empty text"),
    "blank prompt": ([{"prompt": "  "}], ":1: must be an item with a non-empty text"),
    "prompt no text": ([{"prompt": 5}], ":1: must be an item with a non-empty text"),
    "answer a list": ([{"prompt": "a", "answer": [1]}], ":1: must be an item whose 'answer'"),
    "double id": (
        [{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1"}],
        "free of double ids; '1'",
    ),
    "empty": ([], "a file with at least one item; it has none"),
    "deep": (["[" * 100_000], ":1: must be one JSON object a line"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lines_are_named(tmp_path: Path, case: str) -> None:
    lines, expected = BAD[case]
    with pytest.raises(SettingError) as caught:
        load_task(TaskSetting("jsonl", write(tmp_path, *lines)))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_line_beyond_the_limit_is_found_too(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=":2:"):
        load_task(TaskSetting("jsonl", write(tmp_path, {"prompt": "a"}, "{"), 1))


def test_no_text_file(tmp_path: Path) -> None:
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="readable UTF-8 file"):
        load_task(TaskSetting("jsonl", str(path)))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (TaskSetting("nothing"), "task=nothing: must be one of aime24"),
        (TaskSetting("jsonl"), "task.path=None: must be the path of a JSONL file"),
        (TaskSetting("jsonl", "/no/such.jsonl"), "task.path=/no/such.jsonl: must be an existing"),
        (TaskSetting("jsonl", "/", options={}), "must be an existing JSONL file"),
        (TaskSetting("gsm8k", options={"lmit": 3}), "task.lmit=3: must be left out"),
        (TaskSetting("gsm8k", options={"revision": 3}), "task.revision=3: must be of type str"),
        (TaskSetting("gsm8k", "/no/such.parquet"), "must be an existing .parquet, .jsonl"),
        (TaskSetting("livecodebench_easy", "/"), "a folder with test.jsonl, test2.jsonl"),
        (
            TaskSetting("livecodebench_easy", options={"release": "v2"}),
            "task.release=v2: must be one of release_v1",
        ),
        (TaskSetting("aime24", options={"instruction": "x"}), "must be one of before, after"),
        (TaskSetting("humaneval", "/no/such.jsonl.gz"), "a readable JSONL.gz file"),
    ],
)
def test_mistakes_are_one_line(setting: TaskSetting, expected: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_task(setting)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_task_has_a_config() -> None:
    folder = Path(__file__).parent.parent / "configs" / "task"
    assert {path.stem for path in folder.glob("*.yaml")} == set(LOADERS)
    for path in folder.glob("*.yaml"):
        first = path.read_text().splitlines()[0]
        assert first.startswith("# python -m nondet.run")
