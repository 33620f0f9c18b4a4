"""Background load: a second stream of filler requests at a given rate, drawn from a seed.

Arrivals are a Poisson process; prompts and lengths come from the same generator, so that a repeat
sends the same fillers at the same times (as far as the machine keeps time). No more than
``in_flight`` are open at a time: a server that cannot carry the rate gets fewer of them, and the
record says how many were left out.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nondet.backends.options import Option

WORDS = (
    "river",
    "stone",
    "letter",
    "market",
    "window",
    "engine",
    "garden",
    "paper",
    "bridge",
    "number",
    "music",
    "winter",
    "corner",
    "travel",
    "simple",
    "answer",
)
TABLE: dict[str, Option] = {
    "load_rate": Option(float, 0.0, 0, help="background requests a second"),
    "load_words": Option(int, 120, 1, help="most words of a background prompt"),
    "load_tokens": Option(int, 64, 1, help="most tokens of a background request"),
    "load_in_flight": Option(int, 32, 1, help="most background requests open at a time"),
    "load_seed": Option(int, 1, 0, help="seed of the background stream"),
}
COUNTS = ("sent", "answered", "failed", "left_out", "overlapping", "measured_beside")


@dataclass(frozen=True)
class LoadPlan:
    """What is sent: ``rate`` fillers a second of at most ``words`` words and ``tokens`` tokens."""

    rate: float
    words: int
    tokens: int
    in_flight: int
    seed: int

    def __str__(self) -> str:
        size = f"up to {self.words} words and {self.tokens} tokens"
        return f"{self.rate:g} fillers/s of {size}, {self.in_flight} in flight at most"


def load_plan(options: Mapping[str, Any]) -> LoadPlan | None:
    """The load that a backend's options ask for, if any."""
    if not options["load_rate"]:
        return None
    return LoadPlan(**{key.removeprefix("load_"): options[key] for key in TABLE})


@dataclass(frozen=True)
class Filler:
    """One filler: seconds after the one before, its prompt, and how many tokens it asks for."""

    gap_s: float
    prompt: str
    tokens: int


def fillers(plan: LoadPlan) -> Iterator[Filler]:
    """An endless stream: exponential gaps of mean 1 / rate seconds, lengths uniform from 1 on."""
    rng = np.random.default_rng(plan.seed)
    while True:
        words = rng.choice(WORDS, size=int(rng.integers(1, plan.words + 1)))
        gap_s = float(rng.exponential(1.0 / plan.rate))
        yield Filler(gap_s, " ".join(words), int(rng.integers(1, plan.tokens + 1)))


class BackgroundLoad:
    """Sends fillers through ``send`` from its own threads until stopped."""

    def __init__(self, send: Callable[[Filler], None], plan: LoadPlan) -> None:
        self.plan = plan
        self._send, self._stream = send, fillers(plan)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(plan.in_flight, thread_name_prefix="load")
        # Open now, by number: whether each has met one of the other kind.
        self._open: dict[str, dict[int, bool]] = {"filler": {}, "measured": {}}
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """Send no more, wait for those in flight, and return the counts."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(wait=True)  # one that is counted as sent is sent
        return self.counts()

    def counts(self) -> dict[str, int]:
        """Fillers sent, answered, failed, and left out because too many were in flight; answered
        ones that were open together with a measured request, and measured requests that were open
        together with a filler."""
        with self._lock:
            return {name: self._counts[name] for name in COUNTS}

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around a measured request: counts it if a filler was open at any time in between."""
        with self._lock:
            number = self._enter("measured", "filler")
        try:
            yield
        finally:
            with self._lock:
                self._counts["measured_beside"] += self._open["measured"].pop(number)

    def _enter(self, kind: str, other: str) -> int:
        """Note a request as open, and that it has met all open ones of the other kind."""
        self._counts[f"{kind} opened"] += 1
        number = self._counts[f"{kind} opened"]
        self._open[kind][number] = bool(self._open[other])
        self._open[other] = dict.fromkeys(self._open[other], True)
        return number

    def _run(self) -> None:
        due = time.monotonic()
        for filler in self._stream:
            due += filler.gap_s
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            with self._lock:
                if len(self._open["filler"]) >= self.plan.in_flight:
                    self._counts["left_out"] += 1
                    continue
                self._counts["sent"] += 1
                number = self._enter("filler", "measured")
            self._pool.submit(self._one, filler, number)

    def _one(self, filler: Filler, number: int) -> None:
        try:
            self._send(filler)
            outcome = "answered"
        except Exception:
            outcome = "failed"
        with self._lock:
            self._counts[outcome] += 1
            overlapped = self._open["filler"].pop(number)
            self._counts["overlapping"] += overlapped and outcome == "answered"
