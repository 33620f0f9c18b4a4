"""The two processes of one test: the program under test, and the test that calls it.

Both are forked from the server, take their limits on and give their rights up before any foreign
text is run. The program serves calls over a pipe; the test, which is trusted, compares.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import confine, seccomp, wire

EXIT_OK, EXIT_ERROR, EXIT_MEMORY, EXIT_UNCONFINED = 0, 65, 66, 67


def take_limits(limits: dict[str, int]) -> None:
    """CPU seconds, bytes of memory, bytes a file, open files; no core dumps."""
    cpu = limits["cpu_s"]
    pairs = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_FSIZE: (limits["file_bytes"],) * 2,
        resource.RLIMIT_NOFILE: (64, 64),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_STACK: (64 * 2**20,) * 2,
        resource.RLIMIT_AS: (limits["memory_bytes"],) * 2,
    }
    for which, pair in pairs.items():
        _, hard = resource.getrlimit(which)
        top = pair[1] if hard == resource.RLIM_INFINITY else min(pair[1], hard)
        resource.setrlimit(which, (min(pair[0], top), top))


def confine_child(folder: str, limits: dict[str, int], needed: dict[str, bool]) -> None:
    """Own session, limits, file rules and call filter. Exits when a layer in force fails."""
    os.setsid()
    os.chdir(folder)
    kept = (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ)
    for number in signal.valid_signals().difference(kept):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    confine.LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: dies with the server
    if needed["landlock"] and not confine.landlock(folder):
        os._exit(EXIT_UNCONFINED)
    take_limits(limits)
    if needed["seccomp"]:
        if not seccomp.refuse_calls(confine.LIBC):
            os._exit(EXIT_UNCONFINED)
    else:
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"],) * 2)


def keep_only(keep: dict[int, int]) -> None:
    """Make the handles ``keep`` (old: new) the only open ones; standard ones among them."""
    high = [(fcntl.fcntl(old, fcntl.F_DUPFD, 100), new) for old, new in keep.items()]
    for temporary, new in high:
        os.dup2(temporary, new)
    os.closerange(max(keep.values()) + 1, 4096)
    sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.argv = ["answer"]


def exec_text(text: str, name: str) -> types.ModuleType:
    """Run program text as a module of that name, so that it finds itself in sys.modules."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, "<answer>", "exec", dont_inherit=True), module.__dict__)
    return module


def run_script(text: str) -> NoReturn:
    """A whole program: reads standard input, prints, ends."""
    code = EXIT_ERROR
    try:
        exec_text(text, "__main__")
        code = EXIT_OK
    except SystemExit as error:
        code = EXIT_OK if error.code in (None, 0) else EXIT_ERROR
    except MemoryError:
        code = EXIT_MEMORY
    except BaseException:
        code = EXIT_ERROR
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    """Leave as an interpreter does: threads joined, exit functions run, output written."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or EXIT_ERROR
    os._exit(code)


def serve_calls(text: str, entry: str, inbox: int, outbox: int) -> NoReturn:
    """Define the functions of a text, then answer calls of ``entry`` until nobody asks."""
    code = EXIT_ERROR
    try:
        target = _find(exec_text(text, "answer"), entry)
        while True:
            arguments = wire.unpack(wire.receive(inbox))
            try:
                reply: Any = {"value": wire.pack(target(*arguments))}
            except MemoryError:
                raise
            except BaseException as error:
                reply = {"raised": type(error).__name__}
            wire.send(outbox, reply)
    except wire.WireError:
        code = EXIT_OK
    except MemoryError:
        code = EXIT_MEMORY
    except BaseException as error:
        with contextlib.suppress(BaseException):
            wire.send(outbox, {"broken": type(error).__name__})
    finally:
        os._exit(code)


def _find(module: types.ModuleType, entry: str) -> Callable[..., Any]:
    """``name`` of a function, or of a method of ``Solution``."""
    solution = getattr(module, "Solution", None)
    owner = solution() if callable(solution) and hasattr(solution, entry) else module
    found = getattr(owner, entry, None)
    if not callable(found):
        raise NameError(entry)
    target: Callable[..., Any] = found
    return target


class Raised(Exception):
    """The program under test raised where no builtin exception of that name is known."""


class Candidate:
    """Stands for the function under test: sends the arguments over, returns plain data."""

    def __init__(self, inbox: int, outbox: int) -> None:
        self._inbox, self._outbox = inbox, outbox
        self.raised: BaseException | None = None
        self.lost = ""

    def __call__(self, *arguments: object) -> Any:
        try:
            wire.send(self._outbox, wire.pack(list(arguments)))
            reply = wire.receive(self._inbox)
            if "value" in reply:
                return wire.unpack(reply["value"])
        except (wire.WireError, TypeError, MemoryError) as error:
            self.lost = "gone"
            raise SystemExit from error
        if "raised" not in reply:
            self.lost = "broken"
            raise SystemExit
        cls = getattr(builtins, str(reply["raised"]), Raised)
        if not (isinstance(cls, type) and issubclass(cls, Exception)):
            cls = Raised
        try:
            self.raised = cls()
        except TypeError:
            self.raised = Raised()
        raise self.raised


def run_test(trusted: dict[str, str], inbox: int, outbox: int) -> str:
    """Run a trusted test, which must define ``check(candidate)``: pass, wrong, error or gone.

    The test may also call the function under test by its name.
    """
    candidate = Candidate(inbox, outbox)
    module = types.ModuleType("test")
    try:
        text = trusted["setup"] + "\n" + trusted["test"]
        exec(compile(text, "<test>", "exec"), module.__dict__)
        setattr(module, trusted["entry"], candidate)
        module.check(candidate)
    except SystemExit:
        return "error" if candidate.lost == "broken" else "gone"
    except BaseException as error:
        return "error" if error is candidate.raised else "wrong"
    return "gone" if candidate.lost else "pass"
