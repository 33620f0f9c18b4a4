"""The strict numeric path: a whole number said as the answer, or nothing.

No fall-back to the last number of the text. The number counts when it stands in a box, after an
answer phrase, after an equals sign that ends the response, or when it is the whole response.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import ClassVar

from nondet.marking.base import Answered, Mark, Outcome
from nondet.marking.boxes import answer_spans

_NUMBER = r"[-+\u2212]?(?:\d{1,3}(?:(?:,|\\,|\{,\}|\u202f|\u00a0|\u2009| )\d{3})+|\d+)(?:\.\d+)?"
_WHOLE = re.compile(rf"({_NUMBER})(?:\s*/\s*({_NUMBER}))?", re.ASCII)
_SEPARATORS = re.compile(r"\\,|\{,\}|[,\u202f\u00a0\u2009 ]")
_UNIT = re.compile(r"(?:\s|\\[ ,;!]|~)*(?:[A-Za-z°€£$]+|\\(?:text|mathrm|mbox)\{[^{}]*\})?[\s.!]*")
_NAME = re.compile(r"\s*[A-Za-z](?:_\w+)?\s*=\s*")
_LONGEST = 400  # characters an answer may have; more is no number


def parse_number(text: str) -> Decimal | None:
    """The one number a short text states, units and thousands separators aside, else None.

    Digits are 0 to 9 only. Percent stays what it is: "50%" is no number, since it may mean 50
    or 0.5.
    """
    text = text.strip().strip("*").strip().removesuffix(".").strip()
    if not text or len(text) > _LONGEST:
        return None
    inline = re.match(r"\$((?:\\.|[^$\\])+)\$(?!.*\$)", text, re.DOTALL)
    text = inline[1].strip() if inline else text
    text = text.removeprefix("\\(").removesuffix("\\)").strip()
    named = _NAME.match(text)
    text = text[named.end() :] if named else text
    text = re.sub(r"^(?:\\?[$€£])\s*", "", text)
    found = _WHOLE.match(text)
    if found is None or _UNIT.fullmatch(text[found.end() :]) is None:
        return None
    value, below = _decimal(found[1]), _decimal(found[2]) if found[2] else Decimal(1)
    if value is None or not below:
        return None
    return value if below == 1 else value / below


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(_SEPARATORS.sub("", text).replace("\u2212", "-"))
    except InvalidOperation:
        return None


def canonical(value: Decimal) -> str:
    """The same text for the same number: 12, -3.5; no exponent, no trailing zeros."""
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


class IntegerMarker:
    """Marks a response against one number, exactly."""

    name: ClassVar[str] = "integer"
    version: ClassVar[str] = "integer-1"

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer. Several stated numbers that differ are no answer."""
        return [mark_number(answered) for answered in answers]


def mark_number(answered: Answered) -> Mark:
    """Right when the stated number equals the item's answer as a number."""
    if answered.item.answer is None:
        return Mark(Outcome.MARKER_ERROR, note="the item has no answer")
    right = parse_number(answered.item.answer)
    if right is None:
        return Mark(Outcome.MARKER_ERROR, note="the item's answer is no number")
    return mark_values(answered, right)


def mark_values(answered: Answered, right: Decimal) -> Mark:
    """The verdict on what the text states, against a number."""
    missing = Outcome.TRUNCATED_NO_ANSWER if answered.truncated else Outcome.NO_ANSWER
    spans = answer_spans(answered.text, answered.truncated)
    if not spans:
        return Mark(missing)
    values = [parse_number(span) for span in spans]
    if any(value is None for value in values):
        return Mark(missing, note="what is given as the answer is not one number")
    texts = {canonical(value) for value in values if value is not None}
    if len(texts) > 1:
        return Mark(missing, note="several different answers: " + ", ".join(sorted(texts)[:4]))
    text = texts.pop()
    return Mark(Outcome.RIGHT if text == canonical(right) else Outcome.WRONG, text)
