"""Rank 0's half: it starts the other ranks, feeds them waves, and notices when one dies.

Rank 0 is the worker of the run. The others are its children in its own process group, so whoever
kills the group leaves none behind; a rank whose standard input closes ends by itself. A rank that
dies can leave rank 0 waiting inside an exchange that no exception reaches: then a watching thread
says why and ends the process.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from nondet.backends.base import Request
from nondet.backends.limits import TIMED_OUT
from nondet.environment import child_environment
from nondet.settings import Setting

from .group import WAIT_S, Group, Ranks, device_of

# How long rank 0 may take to notice a dead rank by itself, and ranks to end when told to.
GRACE_S = 5.0
CLOSE_S = 30.0
HOST = "127.0.0.1"


def seat(setting: Setting, model_path: str, kind: str) -> Group:
    """This process as a rank: alone, or rank 0 of ``setting.gpus`` whose others are started now.

    kind: "cpu" or "cuda". Raises RuntimeError naming the rank that did not come up.
    """
    if setting.gpus == 1:
        return Group(device_of(kind, 0, 1))
    return Team(setting, model_path, kind)


class Team(Ranks):
    """Rank 0 and the processes of all others."""

    def __init__(self, setting: Setting, model_path: str, kind: str) -> None:
        size = setting.gpus
        limit = timedelta(seconds=WAIT_S)
        store = TCPStore(HOST, 0, size, is_master=True, timeout=limit, wait_for_workers=False)
        job = {"setting": setting.to_dict(), "model_path": model_path, "kind": kind}
        self.kind = kind
        self.ending = threading.Event()
        self.dead = threading.Event()
        self.reason, self.failed = "", False
        self.members = [_start({**job, "rank": r, "port": store.port}) for r in range(1, size)]
        for rank, member in enumerate(self.members, 1):
            threading.Thread(target=self._watch, args=(rank, member), daemon=True).start()
        try:
            with self._explained():
                super().__init__(0, size, store, device_of(kind, 0, size))
        except BaseException:
            self.close()
            raise

    def meet(self) -> None:
        with self._explained():
            super().meet()

    @contextmanager
    def wave(self, wave: Sequence[Request]) -> Iterator[None]:
        with self._explained():
            line = json.dumps([dataclasses.asdict(request) for request in wave])
            for member in self.members:
                assert member.stdin is not None
                member.stdin.write(line + "\n")
                member.stdin.flush()
            yield

    def observed(self) -> dict[str, Any]:
        return {**super().observed(), "processes": [os.getpid(), *(m.pid for m in self.members)]}

    def close(self) -> None:
        """End the others: told to, or killed when one of them or this one has failed."""
        self.ending.set()
        failed = self.failed or self.dead.is_set()
        if self.kind == "cuda":
            # An exchange that is never answered can hold this process for ever, also at its exit.
            faulthandler.dump_traceback_later(CLOSE_S, exit=True)
        for member in self.members:
            if failed:
                member.kill()
            with suppress(OSError):  # it is gone already
                assert member.stdin is not None
                member.stdin.close()
        if not failed or self.kind == "cpu":
            super().close()
        for member in self.members:
            try:
                member.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()
        if not failed:
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the rank whose death is behind an error of an exchange."""
        try:
            yield
        except Exception as error:
            self.failed = True
            if self.dead.wait(GRACE_S / 2):
                raise RuntimeError(self.reason) from error
            raise

    def _watch(self, rank: int, member: subprocess.Popen[str]) -> None:
        assert member.stdout is not None
        said = member.stdout.read().strip()
        code = member.wait()
        if self.ending.is_set() or self.dead.is_set():
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self.reason = f"rank {rank} of {len(self.members) + 1} {said or how}"
        self.dead.set()
        if self.ending.wait(GRACE_S):
            return
        os.write(2, f"{self.reason}\n".encode())
        for other in self.members:
            other.kill()
        os._exit(TIMED_OUT)


def _start(job: dict[str, Any]) -> subprocess.Popen[str]:
    member = subprocess.Popen(
        [sys.executable, "-m", "nondet.parallel.rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment({}),
    )
    assert member.stdin is not None
    member.stdin.write(json.dumps(job) + "\n")
    member.stdin.flush()
    return member
