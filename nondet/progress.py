"""One live display for a sweep; plain lines when the output is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# A plain line at most this often within one run, in seconds.
QUIET = 20.0


class Display(Protocol):
    """What a run tells while it goes on."""

    def run_begins(self, label: str, items: int, done: int) -> None: ...
    def wave_done(self, items: int, tokens: int, seconds: float) -> None: ...
    def run_ends(self, words: str) -> None: ...
    def say(self, words: str) -> None: ...


class Counter:
    """Runs, items and tokens so far, and the time left judging by the items so far."""

    def __init__(self, runs: int) -> None:
        self.runs, self.runs_done = runs, 0
        self.items = self.items_done = self.tokens = 0
        self.seconds = 0.0
        self.began = time.monotonic()
        self.items_begun = 0

    def left(self) -> str:
        """Time left as words; empty until it can be judged."""
        worked = self.items_begun + self.items_done
        if not worked or not self.items:
            return ""
        runs_left = max(self.runs - self.runs_done, 1)
        items_left = self.items - self.items_done + self.items * (runs_left - 1)
        seconds = (time.monotonic() - self.began) * items_left / worked
        return f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"

    def rate(self) -> str:
        """Tokens a second within this run."""
        return f"{self.tokens / self.seconds:.0f} tokens/s" if self.seconds else ""


class Lines(Counter):
    """Plain lines on standard error."""

    def __init__(self, runs: int = 1) -> None:
        super().__init__(runs)
        self.last = time.monotonic()

    def run_begins(self, label: str, items: int, done: int) -> None:
        self.items, self.items_done, self.tokens, self.seconds = items, done, 0, 0.0
        resumed = f", {done} already there" if done else ""
        self.say(f"run {self.runs_done + 1}/{self.runs} {label}: {items} items{resumed}")

    def wave_done(self, items: int, tokens: int, seconds: float) -> None:
        self.items_done += items
        self.tokens += tokens
        self.seconds += seconds
        if time.monotonic() - self.last > QUIET:
            parts = (f"{self.items_done}/{self.items} items", self.rate(), self.left())
            self.say("  " + ", ".join(part for part in parts if part))

    def run_ends(self, words: str) -> None:
        self.runs_done += 1
        self.items_begun += self.items_done
        self.items_done = 0
        self.say(f"  {words}")

    def say(self, words: str) -> None:
        self.last = time.monotonic()
        print(f"nondet: {words}", file=sys.stderr, flush=True)


class Live(Counter):
    """A bar for the runs and one for the items of the run in hand."""

    def __init__(self, runs: int = 1) -> None:
        super().__init__(runs)
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
        )
        self.all = self.progress.add_task("runs", total=runs, note="")
        self.one = self.progress.add_task("items", total=None, note="")
        self.label = ""

    def __enter__(self) -> Live:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def run_begins(self, label: str, items: int, done: int) -> None:
        self.items, self.items_done, self.tokens, self.seconds = items, done, 0, 0.0
        self.label = label
        self.progress.reset(self.one, total=items, completed=done, note="loading the model")
        self.progress.update(self.one, description=label)

    def wave_done(self, items: int, tokens: int, seconds: float) -> None:
        self.items_done += items
        self.tokens += tokens
        self.seconds += seconds
        self.progress.update(self.one, completed=self.items_done, note=self.rate())
        self.progress.update(self.all, note=self.left())

    def run_ends(self, words: str) -> None:
        self.runs_done += 1
        self.items_begun += self.items_done
        self.items_done = 0
        self.progress.update(self.all, completed=self.runs_done, note=self.left())
        self.console.print(f"{self.label}: {words}", highlight=False)

    def say(self, words: str) -> None:
        self.console.print(words, highlight=False)
