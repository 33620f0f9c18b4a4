"""Waiting for what other processes do: generous limits, since the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from nondet.backends.limits import alive

T = TypeVar("T")
# Passed only by what never happens.
LONG_S = 120.0


def wait_for(what: Callable[[], T], seconds: float = LONG_S) -> T:
    """What ``what`` returns once that is true. Raises AssertionError after ``seconds``."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"nothing after {seconds:g} s"
        time.sleep(0.02)
    return found


def gone(pids: Iterable[int], seconds: float = LONG_S) -> bool:
    """Whether all processes end within ``seconds``; at once when they have ended.

    One that waits to be collected has ended: orphans are collected by process 1, which takes its
    time, or in a container never does.
    """
    left = list(pids)
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in left):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
