"""Multiple choice: the exact letter in a box or after an answer phrase; conflicts are no answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from nondet.marking.base import Answered, Mark, Outcome
from nondet.marking.boxes import after_thought, answer_spans

LETTERS = "ABCDEFGHIJ"
_DRESS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|bf|rm)\s*\{([^{}]*)\}")
_OPTION = re.compile(r"(?:option|choice)\s+", re.IGNORECASE)
_LETTER = re.compile(r"\(([A-Z])\)|\[([A-Z])\]|([A-Z])(?![\w'’])")
_SEVERAL = re.compile(
    r"\b(?:and|or)\s+(?:option\s+|choice\s+)?\(?[A-Z]\)?(?![\w'’])|[/&,]\s*[A-Z]\b"
)
_LONE = re.compile(r"\W*([A-Z])\W*")


class ChoiceMarker:
    """Marks against one letter. meta["letters"]: the letters there are, default A to D."""

    name: ClassVar[str] = "choice"
    version: ClassVar[str] = "choice-1"

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer."""
        return [mark_choice(answered) for answered in answers]


def mark_choice(answered: Answered) -> Mark:
    """Right when every letter that is stated as the answer is the right one."""
    right, letters = answered.item.answer, str(answered.item.meta.get("letters", "ABCD"))
    if right is None or right not in letters:
        return Mark(Outcome.MARKER_ERROR, note="the item's answer is none of its letters")
    missing = Outcome.TRUNCATED_NO_ANSWER if answered.truncated else Outcome.NO_ANSWER
    final = after_thought(answered.text)
    lone = _LONE.fullmatch(final.strip()) if final and len(final) < 20 else None
    spans = [lone[1]] if lone else answer_spans(answered.text, answered.truncated)
    found = {letter for span in spans if (letter := stated_letter(span)) is not None}
    if "?" in found or len(found) > 1:
        return Mark(missing, note="several letters are given as the answer")
    if not found:
        return Mark(missing)
    (letter,) = found
    if letter not in letters:
        return Mark(missing, note=f"there is no option {letter}")
    return Mark(Outcome.RIGHT if letter == right else Outcome.WRONG, letter)


def stated_letter(span: str) -> str | None:
    """The capital letter a stated answer begins with; "?" when it names several; None for none.

    A bare A or I that begins a sentence ("A good guess") is no letter.
    """
    text = _DRESS.sub(r"\1", span).replace("$", "").strip().lstrip("*_` ")
    text = _OPTION.sub("", text, count=1) if _OPTION.match(text) else text
    found = _LETTER.match(text)
    if found is None:
        return None
    letter = str(next(filter(None, found.groups())))
    rest = text[found.end() :]
    bare = found[3] is not None
    if (
        bare
        and letter in "AI"
        and re.match(r"\s+[a-z]", rest)
        and not re.match(r"\s+(?:because|since|as|or|and)\b", rest)
    ):
        return None
    if _SEVERAL.match(rest.lstrip(" ,*")) or _SEVERAL.match(rest.lstrip(" *")):
        return "?"
    return letter
