"""Time limits end a hung engine with its reason, and nothing it started stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import gone, wait_for

from nondet.backends.limits import TIMED_OUT, alive, descendants, end_all

HANG = """
import subprocess, sys, time
from nondet.backends.engine import EngineBackend
from nondet.settings import setting_from

class Hung(EngineBackend):
    name = "hung"
    def _start(self):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        if {where!r} == "start":
            time.sleep(600)
    def _answer(self, batch):
        time.sleep(600)
    def _stop(self):
        if {where!r} == "stop":
            time.sleep(600)

from nondet.backends.base import Request
# Only the step that hangs has a short limit: the others may take their time on a busy machine.
options = {{f"{{step}}_timeout_s": 300 for step in ("start", "wave", "stop")}}
if {where!r} != "none":
    options["{where}_timeout_s"] = {limit_s}
backend = Hung(setting_from({{"backend": {{"name": "hung", **options}}}}), "")
backend.start()
if {where!r} == "wave":
    backend.generate([Request("a", (1,))])
backend.close()
"""


# Within it the child must have been started and named.
LIMIT_S = 3


def run(where: str) -> tuple[int, int, str]:
    """Exit status, the child's process id, and what was said."""
    done = subprocess.run(
        [sys.executable, "-c", HANG.format(where=where, limit_s=LIMIT_S)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, int(done.stdout.split()[0]), done.stderr


def test_a_hang_at_each_step_ends_with_its_reason_and_no_orphan() -> None:
    words = {"start": "start of hung", "wave": "a wave of 1", "stop": "shutdown of hung"}
    for where, what in words.items():
        status, child, said = run(where)
        assert status == TIMED_OUT, said
        assert said.strip().splitlines()[-1] == f"time limit: {what} took over {LIMIT_S} s"
        assert "_watch" in said or "Thread" in said, "the stacks are in the log"
        assert gone([child])


def test_closing_ends_only_what_the_engine_started() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        status, child, _ = run("none")
        assert status == 0
        assert gone([child])
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_grandchildren_are_found_and_ended() -> None:
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
    code += "'import time; time.sleep(600)']); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        found = wait_for(lambda: descendants(child.pid))
        assert len(found) == 1
        assert child.pid in descendants(os.getpid())
        end_all([child.pid, *found])
        assert gone(found)
    finally:
        child.kill()
        child.wait()


def test_a_process_that_ends_while_it_is_looked_at_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Between two steps of a path the kernel says ESRCH, which is none of the errors that
    # Path.exists and Path.glob expect.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    real = os.stat

    def stat(path: object, *args: object, **more: object) -> os.stat_result:
        if str(path) == f"/proc/{child.pid}/stat":
            raise ProcessLookupError(3, "No such process")
        return real(path, *args, **more)  # type: ignore[call-overload, no-any-return]

    def read(path: Path, *args: object, **more: object) -> str:
        if str(path) == f"/proc/{child.pid}/stat":
            raise ProcessLookupError(3, "No such process")
        return text(path, *args, **more)  # type: ignore[arg-type]

    text = Path.read_text
    try:
        assert child.pid in descendants()
        monkeypatch.setattr(os, "stat", stat)
        assert child.pid in descendants()
        assert alive(child.pid)
        monkeypatch.setattr(Path, "read_text", read)
        assert child.pid not in descendants()
        assert not alive(child.pid)
    finally:
        monkeypatch.undo()
        child.kill()
    assert gone([child.pid])  # not collected yet, but ended
    child.wait()


def test_a_process_of_any_name_is_looked_at() -> None:
    # Names are bytes, and text behind the last bracket is what counts.
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff ) Z ('); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        named = Path(f"/proc/{child.pid}/comm")
        wait_for(lambda: named.read_bytes().startswith(b"\xff"))
        assert child.pid in descendants()
        assert alive(child.pid)
    finally:
        child.kill()
        child.wait()
