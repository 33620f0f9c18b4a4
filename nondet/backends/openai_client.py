"""One endpoint over HTTP: bodies of requests, retries with back-off, every fault counted."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nondet.backends.base import Request
from nondet.settings import Setting

# Faults that gave no answer: these alone are tried again.
RETRIED = (408, 409, 429, 500, 502, 503, 504)
# Longest wait before one more try, in seconds.
LONGEST_WAIT_S = 30.0
_SECRET = re.compile(r"\b(sk|pk|key)-[A-Za-z0-9_-]{6,}")


class EndpointError(RuntimeError):
    """No answer, after all tries or for good; the text never holds a key."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


@dataclass
class Faults:
    """What went wrong, by kind; shared by threads."""

    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str) -> None:
        """Count one fault."""
        with self.lock:
            self.counts[kind] += 1

    def to_dict(self) -> dict[str, int]:
        """Kinds and counts, sorted by kind."""
        with self.lock:
            return dict(sorted(self.counts.items()))


class Endpoint:
    """An OpenAI-compatible base URL (ending in ``/v1``) with its retry policy."""

    def __init__(
        self, url: str, key: str | None, timeout_s: float, retries: int, backoff_s: float
    ) -> None:
        import httpx

        self.url = url.rstrip("/")
        self.retries, self.backoff_s = retries, backoff_s
        self.faults = Faults()
        self._key = key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # A proxy of the environment would carry prompts of a local study elsewhere.
        self.client = httpx.Client(
            headers=headers,
            timeout=timeout_s,
            limits=limits,
            trust_env=not is_local(url),
            # Reading the certificates takes longer than many a request; http:// needs none.
            verify=url.startswith("https"),
        )

    def clean(self, text: str) -> str:
        """A text of the endpoint without anything that looks like a key, one short line."""
        if self._key:
            text = text.replace(self._key, "[key]")
        return _SECRET.sub("[key]", " ".join(text.split()))[:300]

    def get(self, path: str) -> Any:
        """JSON of a GET, or None where the endpoint has none."""
        import httpx

        try:
            reply = self.client.get(self.url + path)
            return reply.json() if reply.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The JSON object of a reply and the faults on the way to it.

        Raises EndpointError when all tries failed, at once for a refusal (a 4xx).
        """
        faults: list[str] = []
        retry_after: float | None = None
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self._wait(attempt, retry_after))
            reply, kind, retry_after = self._once(path, body)
            if reply is not None:
                return reply, faults
            faults.append(kind)
            self.faults.add(kind)
        raise EndpointError("no answer", f"{len(faults)} tries: " + ", ".join(faults))

    def _once(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[dict[str, Any] | None, str, float | None]:
        import httpx

        try:
            reply = self.client.post(self.url + path, json=body)
        except httpx.TimeoutException:
            return None, "timeout", None
        except httpx.ConnectError:
            return None, "no connection", None
        except httpx.HTTPError:
            return None, "cut connection", None
        if reply.status_code in RETRIED:
            return None, f"HTTP {reply.status_code}", _seconds(reply.headers.get("retry-after"))
        if reply.status_code != 200:
            kind = f"HTTP {reply.status_code}"
            self.faults.add(kind)
            raise EndpointError(kind, self.clean(reply.text))
        try:
            value = reply.json()
        except ValueError:
            return None, "malformed JSON", None
        return (value, "", None) if isinstance(value, dict) else (None, "malformed JSON", None)

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        """Seconds before a try: doubled each time, or what the endpoint asks for."""
        wait = self.backoff_s * 2.0 ** (attempt - 1)
        return float(min(LONGEST_WAIT_S, max(wait, retry_after or 0.0)))

    def close(self) -> None:
        """Close all connections."""
        self.client.close()


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return None


def is_local(url: str) -> bool:
    """Whether a URL points to this machine."""
    host = re.sub(r"^\w+://", "", url).split("/")[0].rsplit(":", 1)[0].strip("[]")
    return host in ("localhost", "127.0.0.1", "::1", "0.0.0.0")


# Extras of vLLM and SGLang: token ids in the reply, and none of the model folder's own sampling
# defaults (generation_config.json).
EXTRAS: dict[str, Any] = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


def request_body(
    setting: Setting, request: Request, model: str, *, chat: bool, logprobs: bool, extras: bool
) -> dict[str, Any]:
    """The JSON body of one request. Completions send token ids where there are any."""
    body: dict[str, Any] = {
        "model": model,
        "temperature": setting.temperature,
        "top_p": setting.top_p,
        "seed": request.seed if setting.temperature > 0 else setting.seed,
        "n": 1,
    }
    if chat:
        body["messages"] = [{"role": "user", "content": request.prompt}]
        body["max_completion_tokens" if not extras else "max_tokens"] = setting.max_new_tokens
        if logprobs:
            body |= {"logprobs": True, "top_logprobs": setting.top_k}
    else:
        body["prompt"] = list(request.prompt_tokens) or request.prompt
        body["max_tokens"] = setting.max_new_tokens
        if logprobs:
            body["logprobs"] = setting.top_k
    return {**body, **EXTRAS} if extras else body
