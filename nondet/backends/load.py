"""Background load: a second stream of filler requests at a given rate, drawn from a seed.

Arrivals are a Poisson process; prompts and lengths come from the same generator, so that a repeat
sends the same fillers at the same times (as far as the machine keeps time).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

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
SHORTEST, LONGEST = 4, 120
# Fillers in flight at most; above it the load itself would be what is measured.
MOST_IN_FLIGHT = 64


@dataclass(frozen=True)
class Filler:
    """One filler: seconds after the one before, its prompt, and how many tokens it asks for."""

    gap_s: float
    prompt: str
    tokens: int


def fillers(rate: float, tokens: int, seed: int) -> Iterator[Filler]:
    """An endless stream: exponential gaps of mean 1 / rate seconds, 4 to 120 words, and 1 to
    ``tokens`` tokens asked for."""
    rng = np.random.default_rng(seed)
    while True:
        words = rng.choice(WORDS, size=int(rng.integers(SHORTEST, LONGEST + 1)))
        yield Filler(
            float(rng.exponential(1.0 / rate)), " ".join(words), int(rng.integers(1, tokens + 1))
        )


class BackgroundLoad:
    """Sends fillers through ``send`` from its own threads until stopped."""

    def __init__(self, send: Callable[[Filler], None], rate: float, tokens: int, seed: int) -> None:
        self._send, self._stream = send, fillers(rate, tokens, seed)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(MOST_IN_FLIGHT, thread_name_prefix="load")
        self._in_flight = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """Send no more, wait for those in flight, and return the counts."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        return self.counts()

    def counts(self) -> dict[str, int]:
        """Fillers sent, answered, failed, and left out because too many were in flight."""
        with self._lock:
            names = ("sent", "answered", "failed", "left_out")
            return {name: self._counts[name] for name in names}

    def _run(self) -> None:
        due = time.monotonic()
        for filler in self._stream:
            due += filler.gap_s
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                return
            with self._lock:
                full = self._in_flight >= MOST_IN_FLIGHT
                self._counts["left_out" if full else "sent"] += 1
                self._in_flight += not full
            if not full:
                self._pool.submit(self._one, filler)

    def _one(self, filler: Filler) -> None:
        try:
            self._send(filler)
            outcome = "answered"
        except Exception:
            outcome = "failed"
        with self._lock:
            self._counts[outcome] += 1
            self._in_flight -= 1
