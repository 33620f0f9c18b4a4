"""A process that judges one line after another and may be killed by its CPU limit.

The limit is CPU time of the worker, enforced by the kernel, so a busy machine changes no verdict.
Lines go over in batches; when the worker dies, the line it was at is the one to blame, and a new
worker goes on with the next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

_BATCH = 64  # lines sent ahead; with lines and replies of bounded length no pipe fills up


class Worker:
    """Runs ``script`` (a file of this folder) with the CPU limit as its argument."""

    def __init__(self, script: str, cpu_s: int = 5) -> None:
        self.script, self.cpu_s = Path(__file__).with_name(script), cpu_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self.close()

    def judge(self, questions: Sequence[Any]) -> list[Any | None]:
        """The worker's reply to each JSON value, in order; None where it died of the question.

        Raises RuntimeError when a worker does not even start.
        """
        replies: list[Any | None] = []
        while len(replies) < len(questions):
            batch = questions[len(replies) : len(replies) + _BATCH]
            got = self._batch(batch)
            replies += got
            if len(got) < len(batch):
                self._check_started()
                replies.append(None)
        return replies

    def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue
        process.wait()

    def _check_started(self) -> None:
        """A worker that dies of an easy line is broken: say so instead of blaming answers."""
        self.close()
        if not self._batch([["1", "1"]]):
            self.close()
            raise RuntimeError(f"the marking worker {self.script.name} does not start")

    def _batch(self, batch: Sequence[Any]) -> list[Any]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("".join(json.dumps(line) + "\n" for line in batch))
            process.stdin.flush()
        except OSError:
            pass  # it died early in the batch; the replies say where
        got = []
        for _ in batch:
            line = process.stdout.readline()
            if not line.endswith("\n"):
                break
            got.append(json.loads(line))
        return got

    def _start(self) -> subprocess.Popen[str]:
        # The order of sets must not differ between workers.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-P", str(self.script), str(self.cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
        )
