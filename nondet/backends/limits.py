"""Time limits for an engine that runs in this process, and no orphans after it.

An engine that hangs inside native code cannot be interrupted; the process that holds it can. So a
limit ends the worker itself: the stacks of all threads go to the log, its children are killed,
and the exit status says that it was a limit.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Exit status of a process ended by a time limit (EX_TEMPFAIL of sysexits.h).
TIMED_OUT = 75


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """End this process when the body takes longer than ``seconds``; None means no limit."""
    if seconds is None:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(target=_watch, args=(done, seconds, what), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(done: threading.Event, seconds: float, what: str) -> None:
    if done.wait(seconds):
        return
    faulthandler.dump_traceback(file=2, all_threads=True)
    os.write(2, f"time limit: {what} took over {seconds:g} s\n".encode())
    kill_children()
    os._exit(TIMED_OUT)


def descendants(root: int | None = None) -> list[int]:
    """Process ids of everything below ``root`` (default: this process), children first.

    Read from /proc; an empty list where there is none.
    """
    parents: dict[int, list[int]] = {}
    for pid in _process_ids():
        fields = _stat(pid)
        if fields:
            parents.setdefault(int(fields[1]), []).append(pid)
    found, open_ids = [], [os.getpid() if root is None else root]
    while open_ids:
        children = parents.get(open_ids.pop(), [])
        found += children
        open_ids += children
    return found


def kill_children(grace_s: float = 0.0) -> list[int]:
    """End everything below this process; returns the ids that were there. See ``end_all``."""
    found = descendants()
    end_all(found, grace_s)
    return found


def end_all(found: list[int], grace_s: float = 0.0) -> None:
    """End processes: asked first when ``grace_s`` is given, then killed."""
    if grace_s and found:
        _signal(found, signal.SIGTERM)
        end = time.monotonic() + grace_s
        while time.monotonic() < end and any(alive(pid) for pid in found):
            time.sleep(0.05)
    _signal([pid for pid in found if alive(pid)], signal.SIGKILL)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended; one that waits to be collected has."""
    return bool(fields := _stat(pid)) and fields[0] not in ("Z", "X")


def _process_ids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    """What stands behind a process's name in its stat: state, parent, ...; empty if it is gone.

    Whoever asks first whether the file is there may be told ESRCH for a process that is ending,
    which ``Path.exists`` and ``Path.glob`` raise; so it is read without asking.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
