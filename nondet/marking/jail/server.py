"""The server: a clean interpreter that forks one pair of processes a test.

It reads requests from standard input and writes verdicts to standard output (``wire``). It never
sees an expected output: the text of a test is read from the request pipe by the test process
itself, after the program under test was forked, so nothing of it is in the program's memory.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from . import child, confine, seccomp, wire
from .watch import Watch, classify, reap

# Imported before the first fork, so that no program pays for them.
PRELOADED = (
    "typing math cmath collections itertools functools heapq bisect re string random copy json "
    "operator decimal fractions statistics datetime dataclasses enum hashlib io array queue "
    "threading time abc numbers textwrap contextlib traceback"
)


class Server:
    """One confined place; ``level`` says by what (``begin``)."""

    def __init__(self, box: str, proc: int, needed: dict[str, bool]) -> None:
        self.box, self.watch, self.needed = box, Watch(proc), needed
        self.count = 0

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one test. Keys of the reply: verdict, note, and stdout or value."""
        self.count += 1
        folder = str(Path(self.box, f"{self.count:06d}"))
        Path(folder).mkdir(mode=0o700)
        streams = [self._file("in"), self._file("out")]
        try:
            run = self._script if request["kind"] == "script" else self._calls
            reply = run(request, folder, streams)
        finally:
            for handle in streams:
                os.close(handle)
            clean = _remove(folder)
        # What cannot be removed would take space from the next: the caller starts a new server.
        return reply if clean else {**reply, "stale": True}

    def _file(self, name: str) -> int:
        path = Path(self.box, f"{name}{self.count:06d}")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        path.unlink()
        return handle

    def _fork(self, folder: str, limits: dict[str, int], keep: dict[int, int]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                child.keep_only(keep)
                child.confine_child(folder, limits, self.needed)
            except BaseException:
                os._exit(child.EXIT_UNCONFINED)
        return pid

    def _script(self, request: dict[str, Any], folder: str, streams: list[int]) -> dict[str, Any]:
        stdin, stdout = streams
        _fill(stdin, request["stdin"].encode("utf-8", "surrogatepass"))
        pid = self._fork(folder, request["limits"], {stdin: 0, stdout: 1, os_null(): 2})
        if pid == 0:
            child.run_script(request["code"])
        verdict, note = classify(self.watch.wait(pid, request["limits"]), request["limits"])
        size = os.fstat(stdout).st_size
        if verdict == "ok" and size >= request["limits"]["file_bytes"]:
            verdict, note = "wrong", "output above the limit"
        text = os.pread(stdout, size, 0) if verdict == "ok" else b""
        return {"verdict": verdict, "note": note, "stdout": text.decode("utf-8", "replace")}

    def _calls(self, request: dict[str, Any], folder: str, streams: list[int]) -> dict[str, Any]:
        limits, code, entry = request["limits"], request["code"], request["entry"]
        ask, answer, report = os.pipe(), os.pipe(), os.pipe()
        keep = {streams[0]: 0, streams[1]: 1, os_null(): 2, ask[0]: 3, answer[1]: 4}
        tested = self._fork(folder, limits, keep)
        if tested == 0:
            child.serve_calls(code, entry, 3, 4)
        keep = {os_null(): 0, streams[1]: 1, sys.stdin.fileno(): 3, ask[1]: 4, answer[0]: 5}
        tester = self._fork(self.box, limits, {**keep, report[1]: 6})
        if tester == 0:
            _be_tester()
        for handle in (*ask, *answer, report[1]):
            os.close(handle)
        try:
            # Until the test has its text, its waiting is the caller's, who may have to queue.
            _said(report[0])
            test_end = self.watch.wait(tester, limits, beside=(tested,))
            said = _said(report[0])
        finally:
            os.close(report[0])
        if said != "gone":
            end = reap(tested, killed=True)
            if test_end.idle:
                return _verdict("cpu_limit", "waited too long", stale=True)
            if said is None or classify(end, limits)[0] == "unconfined":
                kind = classify(test_end, limits)[0]
                return _verdict("wrong", f"the test could not go on: {kind}", stale=True)
            return _verdict(said)
        verdict, note = classify(self.watch.wait(tested, limits), limits)
        return _verdict("error", "ended early") if verdict == "ok" else _verdict(verdict, note)


def _verdict(verdict: str, note: str = "", stale: bool = False) -> dict[str, Any]:
    return {"verdict": verdict, "note": note, "stale": stale}


def _said(handle: int) -> str | None:
    """The report of a test process that has ended; None when there is none."""
    try:
        return str(wire.receive(handle))
    except wire.WireError:
        return None


def _be_tester() -> None:
    """In the test process: read the test from the request pipe, say so, run it, report."""
    code = 1
    try:
        trusted = wire.receive(3)
        wire.send(6, "ready")
        verdict = child.run_test(trusted, 5, 4)
        wire.send(6, verdict)
        code = 0
    finally:
        os._exit(code)


_NULL: list[int] = []


def os_null() -> int:
    """A handle of /dev/null, opened once."""
    if not _NULL:
        _NULL.append(os.open(os.devnull, os.O_RDWR))
    return _NULL[0]


def _fill(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    os.lseek(handle, 0, os.SEEK_SET)


def _remove(folder: str) -> bool:
    """Delete a program's folder, whatever it did to the rights in it; whether it is gone."""
    waiting = [folder]
    with contextlib.suppress(OSError):
        while waiting:
            place = waiting.pop()
            Path(place).chmod(0o700)
            with os.scandir(place) as entries:
                waiting += [e.path for e in entries if e.is_dir(follow_symlinks=False)]
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    return not Path(folder).exists()


def begin(root: str, wanted: str) -> tuple[Server, dict[str, Any]]:
    """Confine this process as ``wanted`` says and tell what is in force.

    wanted: ``inside`` (bubblewrap has done it), ``namespaces``, ``landlock`` or ``limits``.
    """
    for name in PRELOADED.split():
        __import__(name)
    random.seed(0)
    # Names that the module ``site`` would have put there.
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    box = "/box"
    if wanted == "namespaces":
        confine.own_namespaces(root)
    elif wanted != "inside":
        box = root
    confine.give_up_rights(change_user=wanted == "namespaces")
    confine.LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE off: nobody looks into the server
    needed = {"landlock": wanted != "limits" and _works("landlock", box)}
    needed["seccomp"] = wanted != "limits" and _works("seccomp", box)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    if wanted == "landlock" and not (needed["landlock"] and needed["seccomp"]):
        raise OSError("no Landlock or no system-call filter")
    return Server(box, proc, needed), {"level": wanted, **needed}


def _works(layer: str, box: str) -> bool:
    """Try a layer in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            good = (
                confine.landlock(box) if layer == "landlock" else seccomp.refuse_calls(confine.LIBC)
            )
            os._exit(0 if good else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def main(root: str, wanted: str) -> None:
    """Serve until the request pipe is closed."""
    inbox, outbox = sys.stdin.fileno(), os.dup(sys.stdout.fileno())
    os.dup2(os_null(), sys.stdout.fileno())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        server, facts = begin(root, wanted)
    except (OSError, KeyError) as error:
        wire.send(outbox, {"failed": str(error)})
        return
    wire.send(outbox, facts)
    with contextlib.suppress(wire.WireError):
        while True:
            wire.send(outbox, server.handle(wire.receive(inbox)))
