r"""Marker tables: at least 25 answers a task with the verdict each must get.

In the tables ``GOLD`` stands for the item's answer. Verdicts: R right, W wrong, N no answer,
T no answer in a truncated response (the text is marked as truncated), E marker error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nondet.marking import Answered, get_marker
from nondet.marking.base import Marker, Outcome
from nondet.marking.mathematics import MathMarker
from nondet.marking.worker import Worker
from nondet.settings import TaskSetting
from nondet.tasks import Item, load_task

DATA = Path(__file__).parent / "data" / "tasks"
OUTCOMES = {
    "R": Outcome.RIGHT,
    "W": Outcome.WRONG,
    "N": Outcome.NO_ANSWER,
    "T": Outcome.TRUNCATED_NO_ANSWER,
    "TR": Outcome.RIGHT,
    "TW": Outcome.WRONG,
    "E": Outcome.MARKER_ERROR,
}
Row = tuple[str, str]
LONG = "7 " * 500_000  # 10^6 characters

WHOLE: list[Row] = [  # the answer is a whole number
    (r"So we get \boxed{GOLD}.", "R"),
    (r"\boxed{999}", "W"),
    ("The answer is GOLD.", "R"),
    ("The answer is 999.", "W"),
    ("**Final answer:** GOLD", "R"),
    ("Answer: $GOLD$", "R"),
    ("The answer is $GOLD$ because 3 + 4 is 7.", "R"),
    ("GOLD", "R"),
    ("x = GOLD", "R"),
    ("3 + 4 + ... = GOLD", "R"),
    ("We have 3 of them. Then maybe GOLD. I am not sure yet.", "N"),  # no box
    (r"\boxed{GOLD} and so again \boxed{GOLD}", "R"),
    (r"\boxed{999}, no, \boxed{GOLD}", "N"),  # two boxes that differ
    (r"\boxed{\boxed{GOLD}}", "R"),
    (r"\boxed{\text{GOLD}}", "R"),
    (r"\boxed{GOLD} This follows from the 12 steps above, see 3.", "R"),  # text after the box
    (r"\boxed{GOLD\text{ cm}}", "R"),
    (r"\boxed{GOLD \text{ pencils}}", "R"),
    ("Answer: GOLD pencils", "R"),
    (r"\boxed{GOLD.0}", "R"),
    (r"\boxed{GOLD.5}", "W"),
    (r"\boxed{\frac{GOLD}{1}}", "R"),
    (r"\boxed{GOLD/2}", "W"),
    (r"\boxed{[1, GOLD)}", "W"),
    (r"\boxed{\{1, GOLD\}}", "W"),
    (r"\boxed{x = GOLD}", "R"),
    (r"\boxed{+GOLD}", "R"),
    (r"\boxed{000GOLD}", "R"),
    (r"\boxed{}", "N"),
    (r"\boxed{GOLD", "N"),  # left open
    (r"\boxed{GOL", "N"),
    ("<think> 12 + 3 = GOLD, so \\boxed{GOLD}? Let me check 17", "N"),  # unfinished thought
    ("<think> it is 4 </think>\nThe answer is GOLD.", "R"),
    ("<think> \\boxed{999} </think>\n\\boxed{GOLD}", "R"),
    ("The answer is 99", "T"),  # cut: digits may be missing
    (r"\boxed{GOLD} and then", "TR"),
    ("First 3, then GOLD, then", "T"),
    ("", "N"),
    ("", "T"),
    ("   \n ", "N"),
    (r"\boxed{١٢٣٤}", "N"),  # digits of another alphabet
    ("答え: １２３", "N"),
    ("Answer: ४", "N"),
    (LONG, "N"),
    (LONG + r"\boxed{GOLD}", "R"),
    ("{" * 500_000 + "\\boxed{" * 70_000, "N"),
    ("answer is " * 100_000, "N"),
    ("Answer: either 999 or GOLD, hard to say", "N"),
    ("The answer to life is somewhere else: GOLD it may be or 7 or 8 or 9, who could know?", "N"),
]
EXPRESSIONS: dict[str, list[Row]] = {  # gold: answers
    r"\frac{1}{2}": [
        (r"\boxed{\frac{1}{2}}", "R"),
        (r"\boxed{\frac12}", "R"),
        (r"\boxed{\dfrac{1}{2}}", "R"),
        (r"\boxed{1/2}", "R"),
        (r"\boxed{0.5}", "R"),
        (r"\boxed{.5}", "R"),
        (r"\boxed{\frac{2}{4}}", "R"),
        ("The answer is 1/2.", "R"),
        (r"Answer: $\frac{1}{2}$", "R"),
        (r"Answer: \(\frac{1}{2}\)", "R"),
        (r"\boxed{x = \frac{1}{2}}", "R"),
        (r"\boxed{-\frac{1}{2}}", "W"),
        (r"\boxed{2}", "W"),
        (r"\boxed{50\%}", "W"),  # as math-verify: percent is a unit
        (r"\boxed{\frac{1}{2}} or \boxed{\frac{1}{3}}", "N"),
        (r"\boxed{0.5} that is \boxed{1/2}", "R"),
        ("The probability: there are 2 sides, 1 of them is right, thus one half or so", "N"),
    ],
    "50": [(r"\boxed{50\%}", "R"), (r"\boxed{50^\circ}", "R"), (r"\boxed{\$50}", "R")],
    "1,234": [
        (r"\boxed{1234}", "R"),
        (r"\boxed{1{,}234}", "R"),
        (r"\boxed{1,234}", "R"),
        (r"\boxed{1\,234}", "R"),
        ("Answer: 1 234", "R"),
        (r"\boxed{1234.0}", "R"),
        (r"\boxed{1235}", "W"),
        (r"\boxed{12,34}", "W"),
    ],
    "[1,3)": [
        (r"\boxed{[1,3)}", "R"),
        (r"\boxed{[1, 3)}", "R"),
        (r"\boxed{x \in [1,3)}", "R"),
        (r"\boxed{(1,3)}", "W"),
        (r"\boxed{[1,3]}", "W"),
        (r"\boxed{[1,4)}", "W"),
        (r"\boxed{3}", "W"),
    ],
    "-2,4": [
        (r"\boxed{-2,4}", "R"),
        (r"\boxed{4, -2}", "R"),
        (r"\boxed{\{-2, 4\}}", "R"),
        (r"\boxed{-2} and \boxed{4}", "R"),
        (r"\boxed{-2}", "W"),
        (r"\boxed{2,4}", "W"),
        (r"\boxed{-2,4,5}", "W"),
    ],
    r"3\sqrt{2}": [
        (r"\boxed{3\sqrt{2}}", "R"),
        (r"\boxed{\sqrt{18}}", "R"),
        (r"\boxed{3\sqrt2}", "R"),
        (r"\boxed{2\sqrt{3}}", "W"),
    ],
    r"\text{Evelyn}": [
        (r"\boxed{\text{Evelyn}}", "R"),
        (r"\boxed{Evelyn}", "R"),
        ("The answer is Evelyn.", "R"),
        (r"\boxed{Carla}", "W"),
    ],
    r"x^2+2x+1": [(r"\boxed{(x+1)^2}", "R"), (r"\boxed{(x+2)^2}", "W")],
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": [
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", "R"),
        (r"\boxed{\begin{pmatrix} 2 \\ 1 \end{pmatrix}}", "W"),
    ],
    r"\left( 3, \frac{\pi}{2} \right)": [
        (r"\boxed{(3, \frac{\pi}{2})}", "R"),
        (r"\boxed{(3, \pi)}", "W"),
    ],
}
LETTER: list[Row] = [  # GOLD is the right letter, OTHER a wrong one
    (r"\boxed{GOLD}", "R"),
    (r"\boxed{OTHER}", "W"),
    (r"\boxed{\text{GOLD}}", "R"),
    (r"\boxed{\textbf{(GOLD)}}", "R"),
    (r"\boxed{(GOLD)}", "R"),
    (r"\boxed{GOLD) the gluon}", "R"),
    (r"\boxed{GOLD. the gluon}", "R"),
    ("GOLD", "R"),
    ("(GOLD).", "R"),
    ("OTHER", "W"),
    ("Answer: GOLD", "R"),
    ("**Answer: GOLD**", "R"),
    ("Answer: **GOLD**", "R"),
    ("Answer: $GOLD$", "R"),
    ("The answer is (GOLD).", "R"),
    ("The correct answer is GOLD because of the colour charge.", "R"),
    ("The answer is option GOLD.", "R"),
    ("The answer is: OTHER. Some reason", "W"),
    (r"\boxed{GOLD} \boxed{OTHER}", "N"),
    (r"\boxed{GOLD} and once more \boxed{GOLD}", "R"),
    ("Answer: GOLD or OTHER", "N"),
    ("Answer: GOLD, OTHER", "N"),
    ("Answer: GOLD\nAnswer: OTHER", "N"),
    ("Answer: GOLD/OTHER", "N"),
    ("Answer: Z", "N"),
    ("The answer is A good question", "N"),
    ("I like GOLD most, then OTHER, for several reasons that I could say more about here", "N"),
    ("Answer: Gold is the best", "N"),
    (r"\boxed{c}", "N"),
    ("Answer: Ｃ", "N"),
    ("Answer: С", "N"),  # Cyrillic
    (r"\boxed{}", "N"),
    (r"\boxed{GOLD", "N"),
    ("<think> so \\boxed{GOLD}", "N"),
    ("<think> \\boxed{OTHER} </think> \\boxed{GOLD}", "R"),
    ("The answer is GOLD", "T"),
    (r"\boxed{GOLD} since", "TR"),
    ("", "N"),
    ("", "T"),
    (LONG, "N"),
]


def check(item: Item, marker: str, rows: Sequence[Row], **fill: str) -> None:
    """Every row gets its verdict."""
    filled = []
    for text, verdict in rows:
        for name, value in fill.items():
            text = text.replace(name, value)
        filled.append((item, text, verdict))
    check_all(get_marker(marker), filled)


def check_all(marker: Marker, rows: Sequence[tuple[Item, str, str]]) -> None:
    """Every row gets its verdict, and gets it again in the opposite order."""
    answers = [Answered(item, text, verdict.startswith("T")) for item, text, verdict in rows]
    marks = marker.mark(answers)
    wrong = [
        (item.answer, text[:80], verdict, mark)
        for (item, text, verdict), mark in zip(rows, marks, strict=True)
        if mark.outcome is not OUTCOMES[verdict]
    ]
    assert not wrong
    assert marker.mark(answers[::-1]) == marks[::-1]


def first_item(name: str) -> tuple[Item, str]:
    files = {"gsm8k": "gsm8k.parquet"}
    file = DATA / files.get(name, f"{name}.jsonl")
    task = load_task(TaskSetting(name, str(file)))
    return task.items[0], task.marker


@pytest.mark.parametrize("name", ["gsm8k", "aime24", "aime25"])
def test_whole_numbers(name: str) -> None:
    item, marker = first_item(name)
    assert len(WHOLE) >= 25
    check(item, marker, WHOLE, GOLD=str(item.answer))


def test_the_strict_marker_reads_no_expressions() -> None:
    item = Item("i", "p", "70")
    expressions = {r"\boxed{\frac{GOLD}{1}}", r"\boxed{[1, GOLD)}", r"\boxed{\{1, GOLD\}}"}
    rows = [row for row in WHOLE if row[0] not in expressions and "text{GOLD}" not in row[0]]
    check(item, "integer", rows, GOLD="70")
    check(item, "integer", [(text, "N") for text in sorted(expressions)], GOLD="70")


def test_aime_answers_with_leading_zeros_are_numbers() -> None:
    item = load_task(TaskSetting("aime24", str(DATA / "aime24.jsonl"))).items[1]
    check(item, "math", [(r"\boxed{81}", "R"), (r"\boxed{081}", "R"), (r"\boxed{18}", "W")])


def test_expressions() -> None:
    assert sum(map(len, EXPRESSIONS.values())) >= 25
    rows = [(Item(gold, "p", gold), *row) for gold, rows in EXPRESSIONS.items() for row in rows]
    check_all(MathMarker(), rows)


def test_math500_sample_marks_its_own_answers_right() -> None:
    task = load_task(TaskSetting("math500", str(DATA / "math500.jsonl")))
    rows = [(item, f"So \\boxed{{{item.answer}}}", "R") for item in task.items]
    check_all(MathMarker(), rows + [(item, "No idea.", "N") for item in task.items])


@pytest.mark.parametrize("name", ["gpqa_diamond", "mmlu_pro"])
def test_letters(name: str) -> None:
    item, marker = first_item(name)
    assert len(LETTER) >= 25
    check(item, marker, LETTER, GOLD=str(item.answer), OTHER="B")


def test_letters_beyond_d_only_where_there_are_such_options() -> None:
    ten, _ = first_item("mmlu_pro")
    four, _ = first_item("gpqa_diamond")
    check(ten, "choice", [("Answer: J", "W")])
    check(four, "choice", [("Answer: J", "N")])


def test_a_comparison_that_hangs_is_unknown_and_blames_no_other() -> None:
    item = Item("i", "p", r"\sqrt{2}")
    rows = [(r"\boxed{\sqrt{2}}", "R"), (r"\boxed{10^{10^{10}}}", "E"), (r"\boxed{\sqrt{3}}", "W")]
    marks = MathMarker(cpu_s=1).mark([Answered(item, text) for text, _ in rows])
    assert [mark.outcome for mark in marks] == [OUTCOMES[verdict] for _, verdict in rows]
    assert marks[1].correct is None


def test_an_item_without_answer_is_a_marker_error() -> None:
    for marker in ("integer", "math", "choice"):
        check(Item("i", "p", None), marker, [(r"\boxed{4}", "E")])


GOLDS = (DATA / "golds.txt").read_text().splitlines()


@pytest.mark.parametrize("form", [r"\boxed{%s}", "The answer is $%s$.", r"Answer: \(%s\)"])
def test_every_gold_answer_marks_right_against_itself(form: str) -> None:
    assert len(GOLDS) >= 90
    rows = [(Item("i", "p", gold), form.replace("%s", gold), "R") for gold in GOLDS]
    check_all(MathMarker(), rows)


def test_every_gold_answer_is_right_by_math_verify_alone() -> None:
    """Without our exact comparison, which would hide what cannot be read."""
    with Worker("math_worker.py") as worker:
        replies = worker.judge([[gold, gold] for gold in GOLDS])
    bad = [(g, r) for g, r in zip(GOLDS, replies, strict=True) if r is None or r[0] != "right"]
    assert bad == []
