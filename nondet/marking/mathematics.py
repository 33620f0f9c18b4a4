r"""Mathematics: a strict numeric path first, then math-verify in a killable process.

What counts as the answer is decided here (``boxes``), never by searching a text for numbers:
math-verify only compares the one expression that the response gives as its answer. A comparison
over the CPU limit is ``marker_error``: unknown, not wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from nondet.marking.base import Answered, Mark, Outcome
from nondet.marking.boxes import answer_spans
from nondet.marking.numbers import canonical, parse_number
from nondet.marking.registry import with_versions
from nondet.marking.worker import Worker

CPU_S = 5
_LONGEST = 1500  # characters of one answer
_INLINE = re.compile(r"(?<!\\)\$\$?((?:\\.|[^$\\])+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_COMMAND = re.compile(r"\\[a-zA-Z]+|\\.")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}")
_WORD = re.compile(r"[A-Za-z]{3,}")
_FUNCTIONS = re.compile(r"(?:arc)?(?:sin|cos|tan)|sec|csc|cot|log|exp|sqrt|max|min", re.IGNORECASE)
_SPACES = re.compile(r"\\[ ,;:!]|\s|\\left|\\right|~")


Pair = tuple[str, str]  # gold and given


class MathMarker:
    """Marks a response against one mathematical expression."""

    name: ClassVar[str] = "math"
    version: ClassVar[str] = with_versions("math-1", "math-verify", "sympy")

    def __init__(self, cpu_s: int = CPU_S) -> None:
        self.cpu_s = cpu_s

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer. Equal questions to math-verify are asked once."""
        drafts = [_draft(answered) for answered in answers]
        open_pairs = dict.fromkeys(draft for draft in drafts if isinstance(draft, tuple))
        verdicts = self._verdicts(list(open_pairs))
        return [
            draft if isinstance(draft, Mark) else _from_verdict(answered, verdicts[draft])
            for answered, draft in zip(answers, drafts, strict=True)
        ]

    def _verdicts(self, pairs: list[Pair]) -> dict[Pair, list[str] | None]:
        if not pairs:
            return {}
        with Worker("math_worker.py", self.cpu_s) as worker:
            return dict(zip(pairs, worker.judge(pairs), strict=True))


def _draft(answered: Answered) -> Mark | Pair:
    """A verdict where none of the heavy machinery is needed, else the pair to compare."""
    gold = answered.item.answer
    if gold is None or not gold.strip():
        return Mark(Outcome.MARKER_ERROR, note="the item has no answer")
    given = _given(answered, gold)
    if isinstance(given, Mark):
        return given
    if _plain(given) == _plain(gold):
        number = parse_number(given)
        return Mark(Outcome.RIGHT, _plain(given) if number is None else canonical(number))
    if re.fullmatch(r"[A-Za-z]{3,}", given):  # a name, not a product of letters
        same = given.casefold() == _plain(gold).casefold()
        return Mark(Outcome.RIGHT if same else Outcome.WRONG, given)
    right, number = parse_number(gold), parse_number(given)
    if right is not None and number is not None:
        if number == right:
            return Mark(Outcome.RIGHT, canonical(number))
        if number == number.to_integral_value() and right == right.to_integral_value():
            return Mark(Outcome.WRONG, canonical(number))
    return gold.strip().strip("$"), given


def _given(answered: Answered, gold: str) -> str | Mark:
    """The one expression the response gives as its answer, or the Mark that there is none."""
    missing = Outcome.TRUNCATED_NO_ANSWER if answered.truncated else Outcome.NO_ANSWER
    spans = answer_spans(answered.text, answered.truncated)
    read = [expression(span) for span in spans]
    if any(not text for text in read):
        return Mark(missing, note="what is given as the answer is no expression")
    distinct = list({_plain(text): text for text in read}.values())
    if not distinct:
        return Mark(missing)
    numbers = {parse_number(text) for text in distinct}
    if len(distinct) == 1 or (len(numbers) == 1 and None not in numbers):
        return distinct[0]
    if "," in gold or "\\pm" in gold:  # several values may be given one by one
        return ", ".join(distinct)
    return Mark(missing, note="several different answers")


def expression(span: str) -> str:
    """A mathematical expression without dollars, or "" when the text is none.

    One piece of inline mathematics in a sentence counts; a sentence without does not.
    """
    if len(span) > _LONGEST or any(c.isdecimal() and not c.isascii() for c in span):
        return ""
    pieces = [next(filter(None, match), "").strip() for match in _INLINE.findall(span)]
    if len(pieces) == 1:
        first = _INLINE.match(span.strip()) is not None
        return pieces[0] if first or not re.search(r"\d", _INLINE.sub(" ", span)) else ""
    if pieces:
        return ", ".join(pieces) if not _WORD.search(_INLINE.sub(" ", span)) else ""
    text = span.strip().rstrip(".").strip("$").strip()
    words = _WORD.findall(_COMMAND.sub(" ", _TEXT.sub(" ", text)))
    if parse_number(text) is None and not all(map(_FUNCTIONS.fullmatch, words)):
        return text if re.fullmatch(r"[A-Za-z]+", text) else ""
    return text


def _plain(text: str) -> str:
    """A text with nothing left that cannot change its meaning: for exact equality."""
    text = text.strip().strip("$").strip().removesuffix(".")
    text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = re.sub(r"^\\text\s*\{([^{}]*)\}$", r"\1", text)
    return _SPACES.sub("", text)


def _from_verdict(answered: Answered, verdict: list[str] | None) -> Mark:
    if verdict is None:
        return Mark(Outcome.MARKER_ERROR, note="no verdict within the CPU limit")
    said, reading = verdict
    if said == "unreadable":
        missing = Outcome.TRUNCATED_NO_ANSWER if answered.truncated else Outcome.NO_ANSWER
        return Mark(missing, note="what is given as the answer cannot be read")
    return Mark(Outcome(said), reading)
