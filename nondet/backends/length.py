"""Prompts that are too long for an engine: an error each, where the engine fails the whole wave."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nondet.backends.base import Request, Response


def answer_short(
    batch: Sequence[Request],
    below: float,
    top_k: int,
    answer: Callable[[Sequence[Request]], list[Response]],
) -> list[Response]:
    """``answer`` to the prompts of fewer than ``below`` tokens and an error for each longer one,
    in the order of the batch."""
    short = [request for request in batch if len(request.prompt_tokens) < below]
    found = iter(answer(short) if short else [])
    return [
        next(found) if len(request.prompt_tokens) < below else too_long(request, top_k, below)
        for request in batch
    ]


def too_long(request: Request, top_k: int, below: float) -> Response:
    """The error for a prompt that the engine would not take."""
    note = f"prompt of {len(request.prompt_tokens)} tokens: this engine takes fewer than {below:g}"
    tokens, logprobs = np.empty(0, np.int32), np.empty(0, np.float32)
    ids, table = np.empty((0, top_k), np.int32), np.empty((0, top_k), np.float32)
    return Response(request.item_id, tokens, logprobs, ids, table, "error", "", note)
