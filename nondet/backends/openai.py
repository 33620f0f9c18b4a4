"""backend=openai: any OpenAI-compatible endpoint, chat or completions, over HTTP.

``batch_size`` is how many requests are open at a time. What the endpoint offers (token ids,
log-probabilities) is found out once by a probe; a reply that lacks it later is an error of that
item. With ``serve`` the backend starts vLLM's or SGLang's own server for the run.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from nondet.backends.base import Request, Response, backend_class, known_path
from nondet.backends.candidates import RAW_LOGPROBS
from nondet.backends.engine import SHARED, EngineBackend
from nondet.backends.load import TABLE as LOAD_TABLE
from nondet.backends.load import BackgroundLoad, Filler, load_plan
from nondet.backends.openai_client import Endpoint, EndpointError, request_body
from nondet.backends.openai_reply import (
    KINDS,
    BadReply,
    Expected,
    entries_of,
    error_response,
    read_reply,
    the_choice,
)
from nondet.backends.options import Option, read_options, refuse
from nondet.backends.vllm import TABLE as VLLM_TABLE
from nondet.environment import versions_in
from nondet.serve import ENGINES, engine_setting, serve
from nondet.settings import Setting, SettingError, one_line

SERVED = {key: option for key, option in VLLM_TABLE.items() if key not in SHARED}
TABLE: dict[str, Option] = {
    **SHARED,
    **SERVED,
    "url": Option(str, "http://127.0.0.1:8000/v1", help="base URL of the endpoint"),
    "api": Option(str, "completions", choices=("completions", "chat")),
    "served_model": Option(str, help="the model's name at the endpoint"),
    "api_key_env": Option(str, "OPENAI_API_KEY", help="variable that holds the key, if any"),
    "token_ids": Option(str, choices=KINDS, help="what a token is; null: the best there is"),
    "raw_logprobs": Option(bool, False, help="the endpoint is known to give raw ones"),
    "request_timeout_s": Option(float, 600.0, 0.01, help="longest single request"),
    "retries": Option(int, 4, 0, help="more tries after a fault that gave no answer"),
    "backoff_s": Option(float, 0.5, 0, help="wait before the first of them, then doubled"),
    **LOAD_TABLE,
    "serve": Option(str, choices=ENGINES, help="start this engine's server for the run"),
    "serve_python": Option(str, help="its interpreter"),
}
PATHS = {"completions": "/completions", "chat": "/chat/completions"}
# Notes of single items kept in the record; the counts by kind are always whole.
MOST_NOTES = 200
# Asked in this order at the start, until the endpoint accepts one.
PROBES = ((True, True), (False, True), (False, False))


class OpenAIBackend(EngineBackend):
    """Sends each request by itself; a wave is answered when its slowest is."""

    name: ClassVar[str] = "openai"
    table: ClassVar[Mapping[str, Option]] = TABLE

    @classmethod
    def check(cls, setting: Setting) -> None:
        """Raise SettingError for what cannot be asked of an endpoint."""
        super().check(setting)
        options = read_options(setting, cls.table)
        refuse(setting, attention=("sdpa", "the endpoint decides"))
        if not re.match(r"https?://[^/\s]+", options["url"]):
            valid = "an address such as http://127.0.0.1:8000/v1"
            raise SettingError("backend.url", options["url"], valid)
        chat = options["api"] == "chat"
        if options["fillers"] and (chat or setting.model.name == "endpoint"):
            valid = "0: fillers are token ids, for api=completions and a model on disk"
            raise SettingError("backend.fillers", options["fillers"], valid)
        if chat and setting.top_k > 20:
            raise SettingError("top_k", setting.top_k, "at most 20 with backend.api=chat")
        if options["serve"] is None:
            given = [key for key in SERVED if setting.backend.options.get(key) is not None]
            if given:
                valid = "null unless backend.serve names an engine"
                raise SettingError(f"backend.{given[0]}", options[given[0]], valid)
            reason = "only backend.serve sets what an engine does"
            refuse(setting, kernels=("default", reason), gpus=(1, reason))
        else:
            check_served(setting, options)

    @classmethod
    def packages(cls) -> tuple[str, ...]:
        return ("httpx",)

    @classmethod
    def versions_elsewhere(cls, setting: Setting) -> dict[str, str | None]:
        options = read_options(setting, cls.table)
        try:
            return engine_versions(options) if options["serve"] else {}
        except (OSError, ValueError) as error:
            valid = f"an interpreter that starts and finds nondet ({one_line(error)[:160]})"
            raise SettingError("backend.serve_python", options["serve_python"], valid) from error

    def _start(self) -> None:
        options, setting = self.options, self.setting
        self.stack = ExitStack()
        url = options["url"]
        self.server = None
        plan = load_plan(options)
        if options["serve"]:
            # No request waits for a place: what the load changes is the batch, not the queue.
            room = self.together + (plan.in_flight if plan else 0)
            asked = replace(engine_setting(setting, options), batch_size=room)
            limit = options["start_timeout_s"]
            self.server = self.stack.enter_context(
                serve(asked, self.model_path, start_timeout_s=limit)
            )
            url = self.server.url
        key = os.environ.get(options["api_key_env"])
        times = (options["request_timeout_s"], options["retries"], options["backoff_s"])
        self.endpoint = Endpoint(url, key, *times)
        self.stack.callback(self.endpoint.close)
        self.model = options["served_model"] or self.model_path
        self.seen: Counter[str] = Counter()
        self.notes: list[list[str]] = []
        self.fingerprints: Counter[str] = Counter()
        self.seen_lock = threading.Lock()
        self._probe()
        self.pool = ThreadPoolExecutor(self.together, thread_name_prefix="request")
        self.stack.callback(self.pool.shutdown, wait=False, cancel_futures=True)
        self.load = BackgroundLoad(self._send_filler, plan) if plan else None
        if self.load:
            self.load.start()

    def _probe(self) -> None:
        """Ask once, for one token, to learn what the endpoint accepts and gives."""
        chat = self.options["api"] == "chat"
        short = replace(self.setting, max_new_tokens=1)
        probe = Request("probe", (), "Hello")
        for extras, logprobs in PROBES:
            form = {"chat": chat, "logprobs": logprobs, "extras": extras}
            body = request_body(short, probe, self.model, **form)
            try:
                reply, _ = self.endpoint.post(self._path, body)
            except EndpointError as error:
                if error.kind in ("HTTP 400", "HTTP 422") and logprobs:
                    continue
                self._check_server()
                raise
            break
        self.form = form
        choice = the_choice(reply)
        has_logprobs = bool(entries_of(choice, chat))
        offered = "bytes" if has_logprobs else "text"
        offered = "ids" if isinstance(choice.get("token_ids"), list) else offered
        kind = self.options["token_ids"] or offered
        if KINDS.index(kind) < KINDS.index(offered):
            raise EndpointError("token_ids", f"{kind} asked for, the endpoint offers {offered}")
        limits = (self.setting.top_k, self.setting.max_new_tokens)
        self.expected = Expected(kind, has_logprobs, chat, *limits)

    @property
    def _path(self) -> str:
        return PATHS[self.options["api"]]

    def _answer(self, batch: Sequence[Request]) -> list[Response]:
        return list(self.pool.map(self._one, batch))

    def _one(self, request: Request) -> Response:
        body = request_body(self.setting, request, self.model, **self.form)
        faults: list[str] = []
        try:
            with self.load.measured() if self.load else nullcontext():
                reply, faults = self.endpoint.post(self._path, body)
            self._register(reply)
            response = read_reply(request, reply, self.expected)
        except BadReply as error:
            self.endpoint.faults.add(error.kind)
            response = error_response(request.item_id, self.setting.top_k, str(error))
        except EndpointError as error:
            self._check_server()
            note = f"{error} (beside {self.load.plan})" if self.load else str(error)
            return self._noted(error_response(request.item_id, self.setting.top_k, note))
        if faults:
            response.note = f"{response.note} after {', '.join(faults)}".strip()
        return self._noted(response)

    def _check_server(self) -> None:
        """Raise ServerError if there was a server of ours and it has ended: nobody will answer."""
        if self.server:
            self.server.check()

    def _noted(self, response: Response) -> Response:
        """Keep a response's note for the record, up to ``MOST_NOTES`` of them."""
        with self.seen_lock:
            if response.note and len(self.notes) < MOST_NOTES:
                self.notes.append([response.item_id, response.note])
        return response

    def _register(self, reply: Mapping[str, Any]) -> None:
        """Count the reply's id and system_fingerprint. Raises BadReply for an id seen before."""
        with self.seen_lock:
            identity = reply.get("id")
            if identity is not None:
                self.seen[str(identity)] += 1
                if self.seen[str(identity)] > 1:
                    raise BadReply("duplicated reply", f"id {str(identity)[:40]} came twice")
            fingerprint = str(reply.get("system_fingerprint"))
            if self.fingerprints and fingerprint not in self.fingerprints:
                self.endpoint.faults.add("system_fingerprint changed")
            self.fingerprints[fingerprint] += 1

    def _send_filler(self, filler: Filler) -> None:
        short = replace(self.setting, max_new_tokens=filler.tokens)
        request = Request("load", (), filler.prompt)
        form = {**self.form, "logprobs": False}
        reply = self.endpoint.client.post(
            self.endpoint.url + self._path, json=request_body(short, request, self.model, **form)
        )
        reply.raise_for_status()

    def observed(self) -> dict[str, Any]:
        """What the endpoint turned out to give, and every fault so far."""
        raw = self.options["raw_logprobs"] or self.server is not None
        listed = self.endpoint.get("/models") or {}
        version = self.endpoint.get("/../version") if self.server else None
        return {
            "engine": f"endpoint {self.options['serve'] or ''}".strip(),
            "engine_version": version,
            "engine_versions": engine_versions(self.options) if self.server else None,
            "models": [entry.get("id") for entry in listed.get("data", [])][:20],
            "logprobs_mode": RAW_LOGPROBS if raw else "endpoint's own",
            "logprobs": self.expected.logprobs,
            "token_ids": self.expected.kind,
            "end_token": "kept" if self.expected.kind == "ids" else "not given",
            "api": self.options["api"],
            "extras": self.form["extras"],
            "system_fingerprints": dict(self.fingerprints),
            "faults": self.endpoint.faults.to_dict(),
            "notes": list(self.notes),
            "load": self.load.counts() if self.load else None,
            "server_command": self.server.shown if self.server else None,
            **self._factors(),
        }

    def _stop(self) -> None:
        if load := getattr(self, "load", None):
            load.stop()
        if hasattr(self, "stack"):
            self.stack.close()


def engine_versions(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Versions in the interpreter of the served engine, which is not this one."""
    python = known_path(options["serve_python"])
    return versions_in(str(python) if python else None, backend_class(options["serve"]).packages())


def check_served(setting: Setting, options: Mapping[str, Any]) -> None:
    """Check what a served engine is asked for. Raises SettingError."""
    if setting.model.name == "endpoint":
        raise SettingError("model", "endpoint", "a model on disk with backend.serve")
    python = options["serve_python"]
    if python is not None and not Path(python).expanduser().is_file():
        valid = f"an interpreter; `make venv-{options['serve']}` makes it"
        raise SettingError("backend.serve_python", python, valid)
    backend_class(options["serve"]).check(engine_setting(setting, options))
