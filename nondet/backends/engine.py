"""What the engines share: options, time limits around every step, needle batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from nondet.backends.base import Backend, Request, Response
from nondet.backends.fillers import with_fillers
from nondet.backends.limits import descendants, end_all, time_limit
from nondet.backends.options import Option, read_options
from nondet.settings import Setting, SettingError

# Options of every engine. Times in seconds.
SHARED: dict[str, Option] = {
    "fillers": Option(int, 0, 0, help="random neighbours of each request (needle), batch_size=1"),
    "start_timeout_s": Option(float, 900.0, 1, help="longest engine start"),
    "wave_timeout_s": Option(float, 1800.0, 1, help="longest wave"),
    "stop_timeout_s": Option(float, 60.0, 1, help="longest shutdown"),
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class EngineBackend(Backend):
    """An engine with its own scheduler. Subclasses answer one batch in ``_answer``.

    A killed run starts over: prefix cache and scheduler carry state between waves.
    """

    stateful: ClassVar[bool] = True
    table: ClassVar[Mapping[str, Option]] = SHARED

    def __init__(self, setting: Setting, model_path: str) -> None:
        super().__init__(setting, model_path)
        self.options = read_options(setting, self.table)

    @classmethod
    def check(cls, setting: Setting) -> None:
        """Raise SettingError for options this engine does not have and factors it cannot do."""
        options = read_options(setting, cls.table)
        if options["fillers"] and (setting.batch_size, setting.batching) != (1, "wave"):
            valid = "0 unless batch_size=1 and batching=wave"
            raise SettingError("backend.fillers", options["fillers"], valid)
        if setting.padding == "fixed":
            raise SettingError("padding", "fixed", "none or wave: this engine does not pad")

    @property
    def together(self) -> int:
        """Most requests in the engine at a time: the batch, or the needle with its fillers."""
        return self.setting.batch_size + int(self.options["fillers"])

    def start(self) -> None:
        """Load the engine and the model, within ``start_timeout_s``."""
        self.before = set(descendants())
        with time_limit(self.options["start_timeout_s"], f"start of {self.name}"):
            self._start()

    def generate(self, wave: Sequence[Request]) -> list[Response]:
        """Answer a wave; with ``fillers``, each request in a batch of its own among them."""
        if not wave:
            return []
        with time_limit(self.options["wave_timeout_s"], f"a wave of {len(wave)}"):
            count = self.options["fillers"]
            if not count:
                return self._answer(wave)
            found = []
            for request in wave:
                batch, place = with_fillers(request, count, self.setting.seed)
                answers = self._answer(batch)
                needle = answers.pop(place)
                failed = sum(answer.finish_reason == "error" for answer in answers)
                if failed:  # the needle was not among as many as the record says
                    needle.note = f"{needle.note} {failed} of {count} fillers failed".strip()
                found.append(needle)
            return found

    def close(self) -> None:
        """Stop the engine within ``stop_timeout_s``; no process of it stays behind."""
        with time_limit(self.options["stop_timeout_s"], f"shutdown of {self.name}"):
            try:
                self._stop()
            finally:
                # Only what this engine started: the caller may have children of its own.
                before = getattr(self, "before", None)
                if before is not None:
                    end_all([pid for pid in descendants() if pid not in before], grace_s=2.0)

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _answer(self, batch: Sequence[Request]) -> list[Response]: ...

    def _stop(self) -> None:
        return None

    def _factors(self) -> dict[str, Any]:
        """What every engine records of its batching."""
        return {"together": self.together, "fillers": self.options["fillers"], "padding": "none"}


def cut_short(response: Response, limit: int) -> Response:
    """The response, or an error where the engine cut it before ``limit`` tokens.

    An engine has limits of its own (the length of a sequence, the cache) and calls them "length",
    too; such a response would pass for one that ran into max_new_tokens.
    """
    if response.finish_reason != "length" or len(response.tokens) >= limit:
        return response
    note = f"cut by the engine after {len(response.tokens)} of {limit} tokens"
    return replace(response, finish_reason="error", note=note)
