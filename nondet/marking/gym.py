"""Procedural tasks: the generator's own scorer decides, in a killable process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from nondet.marking.base import Answered, Mark, Outcome
from nondet.marking.boxes import after_thought, answer_spans
from nondet.marking.registry import with_versions
from nondet.marking.worker import Worker

_OPEN, _CLOSE = "<answer>", "</answer>"
_FULL = 0.999  # a score of reasoning-gym that is right; it gives parts of 1 for form and effort
_LONGEST = 500  # characters of an answer that go to the scorer


class GymMarker:
    """Marks by ``score_answer``. meta: generator, options (a JSON text) and index."""

    name: ClassVar[str] = "reasoning_gym"
    version: ClassVar[str] = with_versions("reasoning_gym-1", "reasoning-gym")

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer; what stands between answer tags, else as in ``boxes``."""
        given = [gym_answer(answered) for answered in answers]
        asked = [place for place, text in enumerate(given) if text is not None]
        questions = [[*_source(answers[place]), given[place]] for place in asked]
        marks = [_missing(answered) for answered in answers]
        if questions:
            with Worker("gym_worker.py") as worker:
                for place, reply in zip(asked, worker.judge(questions), strict=True):
                    marks[place] = _scored(given[place], reply)
        return marks


def gym_answer(answered: Answered) -> str | None:
    """The one answer of a response; None where there is none or where several differ."""
    final = after_thought(answered.text)
    if final is None:
        return None
    if _OPEN in final and _CLOSE not in final:
        return None
    spans = set(tagged(final) or answer_spans(answered.text, answered.truncated))
    answer = spans.pop() if len(spans) == 1 else None
    return answer if answer and len(answer) <= _LONGEST else None


def tagged(text: str) -> list[str]:
    """What stands between answer tags, in order; one pass over the text."""
    found, place = [], text.find(_OPEN)
    while place >= 0:
        start = place + len(_OPEN)
        end = text.find(_CLOSE, start)
        if end < 0:
            break
        found.append(text[start:end].strip())
        place = text.find(_OPEN, end)
    return found


def _source(answered: Answered) -> list[object]:
    meta = answered.item.meta
    return [meta["generator"], meta["options"], meta["index"]]


def _missing(answered: Answered) -> Mark:
    return Mark(Outcome.TRUNCATED_NO_ANSWER if answered.truncated else Outcome.NO_ANSWER)


def _scored(answer: str | None, reply: list[object] | None) -> Mark:
    if reply is None:
        return Mark(Outcome.MARKER_ERROR, answer, "no verdict within the CPU limit")
    score, note = reply
    if not isinstance(score, int | float):
        return Mark(Outcome.WRONG, answer, f"the scorer cannot read it: {note}")
    return Mark(Outcome.RIGHT if score >= _FULL else Outcome.WRONG, answer, f"score {score:.3g}")
