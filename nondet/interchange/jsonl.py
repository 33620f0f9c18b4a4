"""Plain JSONL of responses, one line each.

    {"item_id": "q1", "text": "The answer is 4.", "prompt": "2 + 2?", "correct": 1}

item_id (or id) and text (or response) must be there. Also read: prompt, tokens, logprobs,
finish_reason, answer, correct, sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nondet.interchange.base import ForeignResponse, ForeignRun, InterchangeError, read_lines
from nondet.settings import Scalar

FINISH_REASONS = ("stop", "length", "error")


def read_jsonl(
    path: Path, factors: Mapping[str, Scalar], model: str = "unnamed", task: str = "unnamed"
) -> ForeignRun:
    """One run from one file. Raises InterchangeError with the line that cannot be read."""
    responses = [_response(path, number, entry) for number, entry in read_lines(path)]
    whole = all(response.tokens is not None for response in responses)
    if not whole and any(response.tokens is not None for response in responses):
        raise InterchangeError(f"{path}: tokens must be in every line or in none")
    return ForeignRun(path.name, model, task, responses, factors)


def _response(path: Path, number: int, entry: Mapping[str, Any]) -> ForeignResponse:
    where = f"{path}, line {number}"
    item = entry.get("item_id", entry.get("id"))
    text = entry.get("text", entry.get("response"))
    if item is None or not isinstance(text, str):
        raise InterchangeError(f"{where}: must have item_id (or id) and text (or response)")
    correct = entry.get("correct")
    if correct not in (None, 0, 1):
        raise InterchangeError(f"{where}: correct={correct}: must be 1, 0 or null")
    reason = entry.get("finish_reason") or "stop"
    if reason not in FINISH_REASONS:
        valid = ", ".join(FINISH_REASONS)
        raise InterchangeError(f"{where}: finish_reason={reason}: must be one of {valid}")
    tokens = entry.get("tokens")
    if tokens is not None and not _whole(tokens):
        raise InterchangeError(f"{where}: tokens must be a list of whole numbers")
    answer = entry.get("answer")
    return ForeignResponse(
        item_id=str(item),
        text=text,
        prompt=entry.get("prompt"),
        tokens=tokens,
        logprobs=entry.get("logprobs") or (),
        finish_reason=reason,
        answer=None if answer is None else str(answer),
        correct=None if correct is None else int(correct),
        sample=int(entry.get("sample", 0)),
    )


def _whole(tokens: object) -> bool:
    return isinstance(tokens, list) and all(type(token) is int for token in tokens)
