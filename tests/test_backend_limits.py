"""Time limits end a hung engine with its reason, and nothing it started stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from nondet.backends.limits import TIMED_OUT, descendants, end_all

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
options = {{"start_timeout_s": 1, "wave_timeout_s": 1, "stop_timeout_s": 1}}
if {where!r} != "start":
    options["start_timeout_s"] = 60
backend = Hung(setting_from({{"backend": {{"name": "hung", **options}}}}), "")
backend.start()
if {where!r} == "wave":
    backend.generate([Request("a", (1,))])
backend.close()
"""


def gone(pid: int) -> bool:
    """Whether a process ends within a few seconds (a zombie counts as ended)."""
    for _ in range(100):
        path = Path(f"/proc/{pid}/stat")
        if not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def run(where: str) -> tuple[int, int, str]:
    """Exit status, the child's process id, and what was said."""
    done = subprocess.run(
        [sys.executable, "-c", HANG.format(where=where)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, int(done.stdout.split()[0]), done.stderr


def test_a_hang_at_each_step_ends_with_its_reason_and_no_orphan() -> None:
    words = {"start": "start of hung", "wave": "a wave of 1", "stop": "shutdown of hung"}
    for where, what in words.items():
        status, child, said = run(where)
        assert status == TIMED_OUT, said
        assert said.strip().splitlines()[-1] == f"time limit: {what} took over 1 s"
        assert "_watch" in said or "Thread" in said, "the stacks are in the log"
        assert gone(child)


def test_closing_ends_only_what_the_engine_started() -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        status, child, _ = run("none")
        assert status == 0
        assert gone(child)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_grandchildren_are_found_and_ended() -> None:
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
    code += "'import time; time.sleep(600)']); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        for _ in range(100):
            found = descendants(child.pid)
            if found:
                break
            time.sleep(0.05)
        assert len(found) == 1
        assert child.pid in descendants(os.getpid())
        end_all([child.pid, *found])
        assert gone(found[0])
    finally:
        child.kill()
        child.wait()
