"""A place to run programs written by a model, and verdicts that do not depend on load.

One confined interpreter (``jail.server``) forks a fresh process for every test. What confines it,
best first; ``Sandbox.describe`` says what is in force:

    bubblewrap   the bwrap command, where it is installed
    namespaces   own mounts, network, IPC and host name: a root with nothing but Python in it
    landlock     file rules and the system-call filter, where namespaces are not allowed; the
                 folder is on disk then, and only the size of each file is bounded
    limits       limits of resources alone: not safe for programs nobody has read, and therefore
                 never chosen unless it is asked for by name

Linux only. Where no level works, programs are not run and their mark is ``marker_error``.

In the first three every program also has the system-call filter (``jail.seccomp``: no sockets,
no new processes, no signals to others), so that one process is all there is to count and to kill.
Programs see the standard library only, whatever is installed, so that a verdict is the same on
every machine.

Verdicts: pass, wrong, error (it raised, was refused something, or ended early), cpu_limit,
memory_limit, crash (killed by a signal of its own making). The budget of a test is CPU time, by
the kernel's accounting, plus the same rule for waiting: a test may be idle, neither running nor
queued for a processor, for ``idle_s`` seconds in all; beyond that it is cpu_limit as well. No wall
clock decides anything. A program that needs nearly the whole budget can still fall on either
side, because the speed of a processor itself is not constant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nondet.marking.jail import confine, wire

LEVELS = ("bubblewrap", "namespaces", "landlock", "limits")
VERDICTS = ("pass", "wrong", "error", "cpu_limit", "memory_limit", "crash")
_START = "import sys; sys.path.insert(0, sys.argv[1]); from jail import server; del sys.path[0]; "
_LEAVE_S = 2.0
_MAIN = "server.main(sys.argv[2], sys.argv[3])"


class SandboxError(RuntimeError):
    """The sandbox itself failed: nothing is known about the program."""


@dataclass(frozen=True)
class Limits:
    """What one test may use. Seconds and bytes; ``processes`` counts only without the filter."""

    cpu_s: int = 10
    idle_s: int = 5
    memory_bytes: int = 2**30
    file_bytes: int = 16 * 2**20
    processes: int = 64


@dataclass(frozen=True)
class Verdict:
    """How one test ended. ``stdout`` of a script that ended well has the kind ``ok``."""

    kind: str
    note: str = ""
    stdout: str = ""


class Sandbox:
    """Runs one test after another. Use as a context, or call ``close``; not thread safe.

    level: one of LEVELS, or None for the best safe one that works here. Raises SandboxError when
    the level asked for, or none, works here.
    """

    def __init__(self, limits: Limits | None = None, level: str | None = None) -> None:
        self.limits = dataclasses.asdict(limits or Limits())
        self._process: subprocess.Popen[bytes] | None = None
        self._root = ""
        self.facts: Mapping[str, Any] = {}
        self.level = self._choose(level)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def describe(self) -> str:
        """The level in force and the layers with it, in one line."""
        layers = [name for name in ("landlock", "seccomp") if self.facts.get(name)]
        extra = " + ".join(layer for layer in layers if layer != self.level)
        unsafe = "; NOT safe for unread programs" if self.level == "limits" else ""
        return f"{self.level}{' + ' + extra if extra else ''}{unsafe}"

    def run_script(self, code: str, stdin: str) -> Verdict:
        """Run a whole program on one input: ``ok`` with its output, or why not."""
        return self._ask({"kind": "script", "code": code, "stdin": stdin})

    def run_check(self, code: str, entry: str, setup: str, test: str) -> Verdict:
        """Run a trusted test, which defines ``check(candidate)``, against ``entry`` of a program.

        setup: trusted text that the test needs, such as the prompt it was written for. The
        program and the test run in different processes; only plain data goes between them.
        """
        trusted = {"setup": setup, "test": test, "entry": entry}
        return self._ask({"kind": "calls", "code": code, "entry": entry}, trusted)

    def close(self) -> None:
        """End the server and remove its folder."""
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            # At the end of its requests the server leaves by itself, and its CPU time is counted.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVE_S)
            process.kill()
            process.wait()
        if self._root:
            # Programs may leave folders without rights, or deeper than Python can walk.
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                subprocess.run([*command, self._root], stderr=subprocess.DEVNULL, check=False)
            self._root = ""

    def _choose(self, level: str | None) -> str:
        if level is not None and level not in LEVELS:
            raise SandboxError(f"sandbox={level}: must be one of {', '.join(LEVELS)}")
        failures = []
        for name in (level,) if level else LEVELS[:3]:
            failure = self._start(name)
            if failure is None:
                return name
            failures.append(f"{name}: {failure}")
        raise SandboxError("no sandbox here: " + "; ".join(failures))

    def _start(self, level: str) -> str | None:
        """Start a server at a level; why it cannot be, or None."""
        self.close()
        if level == "bubblewrap" and shutil.which("bwrap") is None:
            return "bwrap is not installed"
        self._root = tempfile.mkdtemp(prefix="nondet-")
        wanted = "inside" if level == "bubblewrap" else level
        here = str(Path(__file__).parent)
        python = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
        command = [python, "-S", "-s", "-P", "-B", "-c", _START + _MAIN, here, self._root, wanted]
        if level == "bubblewrap":
            command = [*_bubblewrap(here, python), *command]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
        )
        try:
            facts = wire.receive(self._handle("stdout"))
        except wire.WireError:
            facts = {"failed": "the interpreter did not start there"}
        if "failed" in facts:
            self.close()
            return str(facts["failed"])
        self.facts = facts
        return None

    def _handle(self, name: str) -> int:
        stream = getattr(self._process, name)
        return int(stream.fileno())

    def _ask(self, request: dict[str, Any], trusted: dict[str, str] | None = None) -> Verdict:
        try:
            if self._process is None:
                raise wire.WireError("no server")
            wire.send(self._handle("stdin"), {**request, "limits": self.limits})
            if trusted is not None:
                wire.send(self._handle("stdin"), trusted)
            reply = wire.receive(self._handle("stdout"))
        except wire.WireError as error:
            self._start(self.level)
            raise SandboxError(f"the sandbox ended: {error}") from error
        if reply.get("stale"):
            self._start(self.level)
        if reply["verdict"] == "unconfined":
            raise SandboxError("a layer that was in force could not be put in force again")
        return Verdict(reply["verdict"], reply["note"], reply.get("stdout", ""))


def _bubblewrap(here: str, python: str) -> list[str]:
    """The bwrap command line: nothing but Python, the libraries and a folder in memory."""
    command = [str(shutil.which("bwrap")), "--unshare-all", "--uid", "65534", "--gid", "65534"]
    command += ["--new-session", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    for path in dict.fromkeys([*confine.readable(), f"{here}/jail", str(Path(python).parent)]):
        if not path.startswith("/dev/"):
            command += ["--ro-bind", path, path]
    for link in ("/lib", "/lib64"):
        if Path(link).is_symlink():
            command += ["--symlink", str(Path(link).readlink()), link]
    return [*command, "--size", str(64 * 2**20), "--tmpfs", "/box", "--chdir", "/", "--"]
