"""How a process ended, by accounts of the kernel that do not depend on what else runs.

CPU time is read when the dead process is collected. Waiting is idle time: wall time in which no
thread of the processes watched ran or stood in the queue for a processor (/proc/PID/schedstat).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from . import child

_TICK_S = 0.02
# A look that comes later than this was held up itself: no more of the gap counts as idle.
_STALL_S = 4 * _TICK_S


class End:
    """How a process ended: wait status, CPU seconds, killed by the server, idle too long."""

    def __init__(self, status: int, cpu_s: float, killed: bool, idle: bool) -> None:
        self.status, self.cpu_s, self.killed, self.idle = status, cpu_s, killed, idle


def classify(end: End, limits: dict[str, int]) -> tuple[str, str]:
    """Verdict and note of an ended process; ``ok`` when it ended by itself without complaint."""
    if end.idle:
        return "cpu_limit", "waited too long"
    if end.cpu_s >= limits["cpu_s"]:
        return "cpu_limit", ""
    if os.WIFSIGNALED(end.status):
        number = os.WTERMSIG(end.status)
        if end.killed and number == signal.SIGKILL:
            return "ok", ""
        if number == signal.SIGXCPU:
            return "cpu_limit", ""
        return "crash", signal.Signals(number).name
    code = os.WEXITSTATUS(end.status)
    names = {child.EXIT_OK: "ok", child.EXIT_MEMORY: "memory_limit"}
    if code == child.EXIT_UNCONFINED:
        return "unconfined", ""
    return names.get(code, "error"), ""


class Watch:
    """Waits for processes; ``proc`` is a handle of /proc."""

    def __init__(self, proc: int) -> None:
        self.proc = proc

    def wait(self, pid: int, limits: dict[str, int], beside: tuple[int, ...] = ()) -> End:
        """Wait for a process; kill it when it and those ``beside`` it are idle too long."""
        watch = os.pidfd_open(pid)
        pids = (pid, *beside)
        idle, before, active = 0.0, time.monotonic(), self._look(pids)[1]
        try:
            while idle <= limits["idle_s"]:
                if select.select([watch], [], [], _TICK_S)[0]:
                    return reap(pid, killed=False)
                now, (busy, done) = time.monotonic(), self._look(pids)
                if busy:
                    # Time in the queue is accounted when it ends: what was idle since the last
                    # look is known only at the next look at which nothing runs or queues.
                    continue
                waited = (now - before) - max(0.0, done - active)
                idle += min(max(0.0, waited), _STALL_S)
                before, active = now, done
            return reap(pid, killed=True, idle=True)
        finally:
            os.close(watch)

    def _look(self, pids: tuple[int, ...]) -> tuple[bool, float]:
        """Whether a thread runs, queues for a processor or waits in the kernel (states R and D:
        load, not idleness); and the seconds that all have run or queued, as far as accounted."""
        busy, total = False, 0
        for pid in pids:
            with contextlib.suppress(OSError):
                tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.proc)
                try:
                    for name in os.listdir(tasks):
                        busy = busy or _state(tasks, name) in (b"R", b"D")
                        total += _schedstat(tasks, name)
                finally:
                    os.close(tasks)
        return busy, total / 1e9


def _state(tasks: int, name: str) -> bytes:
    """The one-letter state of a thread; empty when it is gone."""
    fields = _read(tasks, f"{name}/stat").rpartition(b")")[2].split()
    return fields[0] if fields else b""


def _schedstat(tasks: int, name: str) -> int:
    """Nanoseconds a thread has run or queued; 0 when it is gone."""
    fields = _read(tasks, f"{name}/schedstat").split()
    return int(fields[0]) + int(fields[1]) if len(fields) > 1 else 0


def _read(tasks: int, name: str) -> bytes:
    try:
        handle = os.open(name, os.O_RDONLY, dir_fd=tasks)
    except OSError:
        return b""
    try:
        return os.read(handle, 1024)
    except OSError:
        return b""
    finally:
        os.close(handle)


def reap(pid: int, killed: bool, idle: bool = False) -> End:
    """Kill the process and its group, then collect it."""
    for kill, target in ((os.killpg, pid), (os.kill, pid)):
        with contextlib.suppress(OSError):
            kill(target, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    return End(status, used.ru_utime + used.ru_stime, killed, idle)
