"""Procedural tasks: the generator's scorer decides, wherever its answer is stated."""

from __future__ import annotations

import pytest

from nondet.marking import Answered, Outcome, get_marker
from nondet.marking.gym import gym_answer
from nondet.settings import TaskSetting
from nondet.tasks import Item, load_task

pytest.importorskip("reasoning_gym", reason="the extra `procedural` is not installed")

R, W, N, T = Outcome.RIGHT, Outcome.WRONG, Outcome.NO_ANSWER, Outcome.TRUNCATED_NO_ANSWER
TABLE = [
    ("<answer>GOLD</answer>", R),
    ("Some thought first.\n<answer> GOLD </answer> And more text, 12.", R),
    ("<answer>\nGOLD\n</answer>", R),
    ("<answer>GOLD</answer> so <answer>GOLD</answer>", R),
    ("<answer>1</answer> no <answer>GOLD</answer>", N),
    ("<answer>1</answer>", W),
    ("<answer>GOLD0</answer>", W),
    ("<answer>GOLD.5</answer>", W),
    ("<answer>-GOLD</answer>", W),
    ("<answer>x = GOLD</answer>", W),  # the scorer's rule, not ours
    ("<answer>GOLD apples</answer>", W),
    ("<answer>١٢</answer>", W),
    ("<answer>\\frac{1}{2}</answer>", W),
    ("<answer>[1, 2)</answer>", W),
    ("<answer></answer>", N),
    ("<answer>GOLD", N),
    ("<answer>GOLD", T),
    (r"\boxed{GOLD}", R),
    (r"\boxed{\boxed{GOLD}}", R),
    (r"\boxed{1} \boxed{GOLD}", N),
    (r"\boxed{GOLD", N),
    ("The answer is GOLD.", R),
    ("2 + 3 = GOLD", R),
    ("GOLD", R),
    ("I counted 3 of these and GOLD of those and then stopped to think about it all again.", N),
    ("<think> <answer>GOLD</answer>", N),
    ("<think> <answer>1</answer> </think> <answer>GOLD</answer>", R),
    ("", N),
    ("", T),
    ("7 " * 500_000, N),
    ("<answer>" + "7" * 500_000 + "</answer>", N),
    ("<answer>" * 100_000, N),
]


def test_table() -> None:
    assert len(TABLE) >= 25
    item = load_task(TaskSetting("reasoning_gym", limit=1)).items[0]
    assert item.answer is not None
    answers = [Answered(item, text.replace("GOLD", item.answer), o is T) for text, o in TABLE]
    marks = get_marker("reasoning_gym").mark(answers)
    wrong = [(a.text[:60], m) for a, m, (_, o) in zip(answers, marks, TABLE, strict=True)
             if m.outcome is not o]  # fmt: skip
    assert wrong == []
    assert get_marker("reasoning_gym").mark(answers[::-1]) == marks[::-1]


@pytest.mark.parametrize("generator", ["spell_backward", "countdown", "simple_equations", "maze"])
def test_any_generator_marks_its_own_answers_right(generator: str) -> None:
    task = load_task(TaskSetting("reasoning_gym", limit=3, options={"generator": generator}))
    answers = [Answered(item, f"<answer>{item.answer}</answer>") for item in task.items]
    marks = get_marker(task.marker).mark(answers)
    assert [mark.outcome for mark in marks] == [R] * 3


def test_an_answer_that_is_code_does_nothing(tmp_path: object) -> None:
    task = load_task(TaskSetting("reasoning_gym", limit=1, options={"generator": "countdown"}))
    path = f"{tmp_path}/owned"
    evil = f"__import__('os').system('touch {path}')"
    hangs = "9**9**9**9"
    answers = [Answered(task.items[0], f"<answer>{text}</answer>") for text in (evil, hangs)]
    after = Answered(task.items[0], f"<answer>{task.items[0].answer}</answer>")
    marks = get_marker(task.marker).mark([*answers, after])
    assert marks[0].outcome is W
    assert marks[1].outcome is not R
    assert marks[2].outcome is R
    from pathlib import Path

    assert not Path(path).exists()


def test_one_answer_or_none() -> None:
    item = Item("i", "p")
    assert gym_answer(Answered(item, "<answer>a b\nc</answer>")) == "a b\nc"
    assert gym_answer(Answered(item, "<answer>a</answer><answer>b</answer>")) is None
