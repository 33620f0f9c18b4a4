"""The marker of tasks that have no right answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from nondet.marking.base import Answered, Mark, Outcome


class NoMarker:
    """Judges nothing: every response is ``no_answer`` with the note that nothing was marked.

    ``mark_table`` leaves the marking columns of such a task null.
    """

    name: ClassVar[str] = "none"
    version: ClassVar[str] = "none-1"

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer, all alike."""
        return [Mark(Outcome.NO_ANSWER, note="not marked") for _ in answers]
