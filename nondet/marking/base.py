"""What a marker is: a pure function of the text, so that equal texts get equal verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from nondet.tasks.base import Item


class Outcome(StrEnum):
    """Every verdict there is. Only ``right`` is correct; ``marker_error`` is unknown, not wrong."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TRUNCATED_NO_ANSWER = "truncated_no_answer"
    MARKER_ERROR = "marker_error"


@dataclass(frozen=True)
class Mark:
    """One verdict. ``answer`` is what was read out of the text; None where there was none."""

    outcome: Outcome
    answer: str | None = None
    note: str = ""

    @property
    def correct(self) -> int | None:
        """1 for right, 0 for wrong or no answer, None when the marker itself failed."""
        if self.outcome is Outcome.MARKER_ERROR:
            return None
        return int(self.outcome is Outcome.RIGHT)


@dataclass(frozen=True)
class Answered:
    """A response to be marked: its item, its text, and whether the token limit cut it."""

    item: Item
    text: str
    truncated: bool = False


class Marker(Protocol):
    """Marks responses. ``version`` changes whenever a verdict could change."""

    name: ClassVar[str]
    version: ClassVar[str]

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer, in order. Never raises for a bad text: that is an outcome."""
        ...
