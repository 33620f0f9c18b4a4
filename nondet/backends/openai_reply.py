"""Reading one reply of an OpenAI-compatible endpoint: what is there, and what must not pass.

An answer that is odd is never asked for again: to choose among answers would hide the very
differences that are measured. It becomes a response with finish_reason "error" and its reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nondet.backends.base import Request, Response
from nondet.backends.candidates import candidate_table

# What a token is, where the endpoint does not give ids. See ``token_of``.
KINDS = ("ids", "bytes", "text")
# OpenAI writes this for a token too unlikely to have a log-probability.
MISSING_LOGPROB = -9999.0
ID_PREFIX = "token_id:"


class BadReply(Exception):
    """A reply that arrived whole but must not be used; ``kind`` is counted, the text recorded."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


@dataclass(frozen=True)
class Expected:
    """What every reply of a run must hold: fixed at the start by one probe.

    kind: "ids" (the endpoint returns token ids), "bytes" (tokens are hashes of each token's
    bytes) or "text" (tokens are the bytes of the text). ``chat`` is the API used.
    """

    kind: str
    logprobs: bool
    chat: bool
    top_k: int
    max_new_tokens: int


@dataclass(frozen=True)
class TokenEntry:
    """One emitted token with its candidates, as the endpoint wrote them."""

    id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def token_of(text: str, raw: Sequence[int] | None = None) -> int:
    """A stand-in id for a token without one: 31 bits of the hash of its bytes.

    The same bytes give the same id in every run; it is not the model's own id. ``token_id:17``,
    as vLLM writes on request, is that id itself.
    """
    if text.startswith(ID_PREFIX):
        return int(text.removeprefix(ID_PREFIX))
    data = bytes(raw) if raw is not None else text.encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big") >> 1


def the_choice(body: Any) -> Mapping[str, Any]:
    """The one choice of a reply. Raises BadReply for none, several or a wrong index."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadReply("no choices", "the reply holds no list of choices")
    if len(choices) != 1 or choices[0].get("index", 0) != 0:
        indexes = [choice.get("index") for choice in choices]
        raise BadReply("duplicated choices", f"asked for one, got indexes {indexes}")
    return choices[0]


def entries_of(choice: Mapping[str, Any], chat: bool) -> list[TokenEntry] | None:
    """Tokens with log-probabilities in either API's form; None where the reply has none."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    return _chat_entries(logprobs) if chat else _completion_entries(logprobs)


def _chat_entries(logprobs: Mapping[str, Any]) -> list[TokenEntry] | None:
    content = logprobs.get("content")
    if not isinstance(content, list):
        return None
    found = []
    for row in content:
        top = row.get("top_logprobs") or []
        found.append(
            TokenEntry(
                token_of(row["token"], row.get("bytes")),
                _logprob(row.get("logprob")),
                tuple(token_of(part["token"], part.get("bytes")) for part in top),
                tuple(_logprob(part.get("logprob")) for part in top),
            )
        )
    return found


def _completion_entries(logprobs: Mapping[str, Any]) -> list[TokenEntry] | None:
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        return None
    top = logprobs.get("top_logprobs") or [{} for _ in tokens]
    if not len(tokens) == len(values) == len(top):
        counts = f"{len(tokens)} tokens, {len(values)} log-probabilities, {len(top)} tables"
        raise BadReply("wrong token count", counts)
    return [
        TokenEntry(
            token_of(token),
            _logprob(value),
            tuple(token_of(name) for name in row or {}),
            tuple(_logprob(part) for part in (row or {}).values()),
        )
        for token, value, row in zip(tokens, values, top, strict=True)
    ]


def _logprob(value: Any) -> float:
    """A log-probability, NaN where the endpoint did not give one."""
    if not isinstance(value, int | float) or value <= MISSING_LOGPROB:
        return float("nan")
    return float(value)


def read_reply(request: Request, body: Any, expected: Expected) -> Response:
    """The Response in a reply. Raises BadReply, which names what is wrong."""
    try:
        return _read(request, body, expected)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of one reply among many: it must not end the run of all.
        raise BadReply("malformed reply", f"{type(error).__name__}: {error}"[:200]) from error


def _read(request: Request, body: Any, expected: Expected) -> Response:
    choice = the_choice(body)
    text = choice.get("message", {}).get("content") if expected.chat else choice.get("text")
    if not isinstance(text, str):
        raise BadReply("no text", f"the choice holds {sorted(choice)}")
    _check_prompt(request, body, choice, expected)
    entries = entries_of(choice, expected.chat)
    if expected.logprobs and entries is None:
        raise BadReply("missing logprobs", "the probe at the start had them")
    tokens = _tokens(choice, entries, text, expected)
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        raise BadReply("finish_reason", str(reason))
    _check_count(body, len(tokens), reason, expected)
    logprobs = np.full(len(tokens), np.nan, np.float32)
    ids_T: list[tuple[int, ...]] = [()] * len(tokens)
    values_T: list[tuple[float, ...]] = [()] * len(tokens)
    if entries is not None and expected.kind != "text":
        if len(entries) != len(tokens):
            raise BadReply("wrong token count", f"{len(tokens)} tokens, {len(entries)} entries")
        logprobs[:] = [entry.logprob for entry in entries]
        ids_T, values_T = _candidates(choice, entries, tokens, expected)
    top_ids, top_logprobs = candidate_table(ids_T, values_T, expected.top_k)
    array = np.asarray(tokens, np.int32)
    return Response(request.item_id, array, logprobs, top_ids, top_logprobs, reason, text)


def _candidates(
    choice: Mapping[str, Any],
    entries: Sequence[TokenEntry],
    tokens: Sequence[int],
    expected: Expected,
) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]]]:
    """Candidate ids and values; left out where the endpoint names them by text alone."""
    own = all(entry.id == token for entry, token in zip(entries, tokens, strict=True))
    if expected.kind == "ids" and not own:
        if _named_by_id(choice, expected.chat):
            raise BadReply("tokens disagree", "token_ids and the log-probabilities' tokens differ")
        return [()] * len(entries), [()] * len(entries)
    return [entry.top_ids for entry in entries], [entry.top_logprobs for entry in entries]


def _named_by_id(choice: Mapping[str, Any], chat: bool) -> bool:
    logprobs = choice["logprobs"]
    names = [r["token"] for r in logprobs["content"]] if chat else logprobs["tokens"]
    return any(str(name).startswith(ID_PREFIX) for name in names)


def _tokens(
    choice: Mapping[str, Any],
    entries: Sequence[TokenEntry] | None,
    text: str,
    expected: Expected,
) -> list[int]:
    if expected.kind == "text":
        return list(text.encode())
    if expected.kind == "bytes":
        if entries is None:
            raise BadReply("missing logprobs", "tokens are known from them alone")
        return [entry.id for entry in entries]
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise BadReply("missing token ids", "the probe at the start had them")
    return ids


def _check_prompt(
    request: Request, body: Mapping[str, Any], choice: Mapping[str, Any], expected: Expected
) -> None:
    """An answer to another prompt: shown by the prompt's ids, or by their number."""
    if not request.prompt_tokens:
        return
    asked = list(request.prompt_tokens)
    got = choice.get("prompt_token_ids") or body.get("prompt_token_ids")
    if isinstance(got, list) and got != asked:
        raise BadReply("another prompt", f"answered {got[:4]}..., asked {asked[:4]}...")
    count = (body.get("usage") or {}).get("prompt_tokens")
    if not expected.chat and isinstance(count, int) and count != len(asked):
        raise BadReply("another prompt", f"of {count} tokens, asked with {len(asked)}")


def _check_count(body: Mapping[str, Any], count: int, reason: str, expected: Expected) -> None:
    """Compare the number of tokens with the usage the endpoint reports and with the limit."""
    if expected.kind == "text":
        return
    usage = body.get("usage") or {}
    reported = usage.get("completion_tokens")
    if isinstance(reported, int):
        details = usage.get("completion_tokens_details") or {}
        reported -= int(details.get("reasoning_tokens") or 0)
        # Without ids the end token is counted in usage and missing among the log-probabilities.
        slack = 1 if expected.kind == "bytes" and reason == "stop" else 0
        if not 0 <= reported - count <= slack:
            raise BadReply("wrong token count", f"{count} tokens, usage says {reported}")
    if count > expected.max_new_tokens:
        raise BadReply("wrong token count", f"{count} tokens, limit {expected.max_new_tokens}")
    if reason == "length" and count != expected.max_new_tokens:
        limit = expected.max_new_tokens
        raise BadReply("wrong token count", f"cut at {count} tokens, limit {limit}")


def error_response(item_id: str, top_k: int, note: str) -> Response:
    """The row of a request that got no usable answer: no tokens, the reason in ``note``."""
    empty = np.empty((0, top_k))
    return Response(
        item_id,
        np.empty(0, np.int32),
        np.empty(0, np.float32),
        empty.astype(np.int32),
        empty.astype(np.float32),
        "error",
        "",
        note,
    )
