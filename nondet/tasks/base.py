"""A task: items with prompts and right answers, and the marker that judges a response."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Item:
    """One prompt of a task, with what is needed to mark its answer.

    id: unique in the task, stable over processes and versions.
    prompt: the user's turn, before any chat template.
    answer: the right answer as the marker reads it; None where nothing can be marked.
    meta: further facts for the marker (tests of a program, options of a question): JSON values.
    """

    id: str
    prompt: str
    answer: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Items in their order, and the name of the marker in ``nondet.marking``."""

    name: str
    items: tuple[Item, ...]
    marker: str = "none"
    source: str = ""

    def fingerprint(self, marker_version: str) -> str:
        """Hash of every prompt, answer and meta and of the marker: equal hash, equal question."""
        rows = [[item.id, item.prompt, item.answer, dict(item.meta)] for item in self.items]
        content = json.dumps([self.marker, marker_version, rows], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]
