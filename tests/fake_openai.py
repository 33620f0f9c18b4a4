"""An OpenAI-compatible server for the tests: answers from a hash, faults on demand, loopback only.

A fault is a name from ``FAULTS``; ``plan`` says which request (counted from 0, the probe not
counted) meets which one. Every body and header received is kept.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from processes import LONG_S, wait_for

FAULTS = (
    "429",
    "500",
    "401",
    "timeout",
    "cut",
    "malformed",
    "not_object",
    "no_logprobs",
    "no_ids",
    "minus_9999",
    "fingerprint",
    "same_id",
    "two_choices",
    "other_prompt",
    "usage",
    "short",
    "one_entry_less",
    "filtered",
    "no_choices",
    "disagree",
)
VOCABULARY = 1000
END = 0


@dataclass
class Fake:
    """State of the server. ``style``: "ids" (vLLM-like), "bytes" (strict OpenAI) or "text".

    ``ready`` is asked with the body of every request but the probe until it is true; only then it
    is answered. ``silent``: such requests get no answer before the client hangs up.
    """

    style: str = "ids"
    plan: Mapping[int, str] = field(default_factory=dict)
    delay_s: float = 0.0
    slowest_first: bool = False
    ready: Callable[[Mapping[str, Any]], bool] = lambda body: True
    silent: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Bodies of real requests: neither the probe nor the background load."""
        return [body for body in self.bodies if not is_probe(body)]


def is_probe(body: Mapping[str, Any]) -> bool:
    """Whether a body is the backend's first question."""
    limit = body.get("max_tokens", body.get("max_completion_tokens"))
    text = body.get("prompt") or body.get("messages", [{}])[0].get("content")
    return limit == 1 and text == "Hello"


def answer(body: Mapping[str, Any]) -> list[tuple[int, list[tuple[int, float]]]]:
    """Tokens and candidates, the same for the same prompt and limit."""
    prompt = body.get("prompt") or body.get("messages")
    limit = int(body.get("max_tokens", body.get("max_completion_tokens", 1)))
    seed = hashlib.sha256(json.dumps(prompt).encode()).digest()
    length = 1 + seed[0] % limit if seed[1] % 2 else limit
    rows = []
    for position in range(length):
        hashed = hashlib.sha256(seed + bytes([position])).digest()
        top = int(body.get("top_logprobs") or body.get("logprobs") or 1)
        ids = [1 + (hashed[0] * 7 + rank * 31) % (VOCABULARY - 1) for rank in range(top)]
        if position == length - 1 and length < limit:
            ids[0] = END
        values = [-0.125 - 0.5 * rank - hashed[1] / 1024 for rank in range(top)]
        rows.append((ids[0], list(zip(ids, values, strict=True))))
    return rows


def word(token: int) -> str:
    """A token's text; the end token has none."""
    return "" if token == END else f" w{token}"


def build(fake: Fake, body: Mapping[str, Any], number: int, fault: str | None) -> dict[str, Any]:
    """The reply to one request, with its fault."""
    rows = answer(body)
    chat = "messages" in body
    by_id = bool(body.get("return_tokens_as_token_ids"))
    limit = int(body.get("max_tokens", body.get("max_completion_tokens", 1)))
    reason = "stop" if rows[-1][0] == END else "length"
    if fault == "short":
        rows, reason = rows[:-1], "length"
    shown = rows
    if fake.style == "bytes" and reason == "stop":
        shown = rows[:-1]
    if fault == "one_entry_less":
        shown = shown[:-1]

    def name(token: int) -> str:
        return f"token_id:{token}" if by_id and fake.style == "ids" else word(token)

    def value(logprob: float) -> float:
        return -9999.0 if fault == "minus_9999" else logprob

    shift = 1 if fault == "disagree" else 0
    if chat:
        logprobs: dict[str, Any] = {
            "content": [
                {
                    "token": name(token + shift),
                    "logprob": value(top[0][1]),
                    "bytes": list(word(token).encode()),
                    "top_logprobs": [
                        {"token": name(i), "logprob": value(lp), "bytes": list(word(i).encode())}
                        for i, lp in top
                    ],
                }
                for token, top in shown
            ]
        }
    else:
        logprobs = {
            "tokens": [name(token + shift) for token, _ in shown],
            "token_logprobs": [value(top[0][1]) for _, top in shown],
            "top_logprobs": [{name(i): value(lp) for i, lp in top} for _, top in shown],
        }
    text = "".join(word(token) for token, _ in rows)
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    asked = body.get("logprobs") not in (None, False)
    if asked and fake.style != "text" and fault != "no_logprobs":
        choice["logprobs"] = logprobs
    prompt = body.get("prompt")
    count = len(prompt) if isinstance(prompt, list) else 5
    if fake.style == "ids" and body.get("return_token_ids") and fault != "no_ids":
        choice["token_ids"] = [token for token, _ in rows]
        if isinstance(prompt, list):
            choice["prompt_token_ids"] = [9] if fault == "other_prompt" else prompt
    if fault == "filtered":
        choice["finish_reason"] = "content_filter"
    usage = {"prompt_tokens": count, "completion_tokens": len(rows) + (fault == "usage") * 2}
    choices = [choice, {**choice, "index": 1}] if fault == "two_choices" else [choice]
    assert limit > 0
    return {
        "id": "reply-0" if fault == "same_id" else f"reply-{number}-{time.monotonic_ns()}",
        "model": "fake",
        "choices": [] if fault == "no_choices" else choices,
        "usage": usage,
        "system_fingerprint": "fp-b" if fault == "fingerprint" else "fp-a",
    }


def handler_for(fake: Fake) -> type[BaseHTTPRequestHandler]:
    """The request handler bound to one Fake."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            return

        def do_GET(self) -> None:
            self.reply(200, {"data": [{"id": "fake"}], "version": "1"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with fake.lock:
                number = len(fake.asked)
                fake.bodies.append(body)
                fake.headers.append(dict(self.headers))
                fake.paths.append(self.path)
                fake.open_now += 1
                fake.most_open = max(fake.most_open, fake.open_now)
            try:
                self.answer(body, number)
            finally:
                with fake.lock:
                    fake.open_now -= 1

        def answer(self, body: dict[str, Any], number: int) -> None:
            fault = None if is_probe(body) else fake.plan.get(number)
            if fake.style != "ids" and "return_token_ids" in body:
                self.reply(400, {"error": {"message": "Unrecognized request argument"}})
                return
            if fake.style == "text" and body.get("logprobs"):
                self.reply(400, {"error": {"message": "logprobs are not available"}})
                return
            if not is_probe(body):
                wait_for(lambda: fake.ready(body))
                time.sleep(fake.delay_s * (4 - number % 4 if fake.slowest_first else 1))
            if fault == "timeout" or (fake.silent and not is_probe(body)):
                self.say_nothing()
            elif fault in ("429", "500"):
                self.reply(int(fault), {"error": {"message": "later"}}, {"Retry-After": "0"})
            elif fault == "401":
                shown = self.headers.get("Authorization", "")
                self.reply(401, {"error": {"message": f"Incorrect API key provided: {shown}"}})
            elif fault == "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{")
                self.wfile.flush()
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
                self.close_connection = True
            elif fault == "malformed":
                self.send(200, b'{"choices": [')
            elif fault == "not_object":
                self.send(200, b"[1, 2]")
            else:
                self.reply(200, build(fake, body, number, fault))

        def say_nothing(self) -> None:
            self.connection.settimeout(LONG_S)
            assert self.connection.recv(1) == b"", "the client goes on without an answer"
            self.close_connection = True

        def reply(
            self, status: int, value: Mapping[str, Any], headers: Mapping[str, str] | None = None
        ) -> None:
            self.send(status, json.dumps(value).encode(), headers)

        def send(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
            try:
                self.send_response(status)
                for key, value in (headers or {}).items():
                    self.send_header(key, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """Serve ``fake`` on a free port of the loopback interface; its ``url`` is set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(fake))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
