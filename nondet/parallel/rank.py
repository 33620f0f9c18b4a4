"""Ranks 1 and up: the same backend on its own part of the model, fed by rank 0.

    python -m nondet.parallel.rank

Standard input: one line with the job, then one line a wave; its end ends the process. Standard
output: one line, why it failed, if it did. The log is rank 0's.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from datetime import timedelta
from typing import Any

from nondet.backends.base import Request

# How long a rank may go on after its standard input closed: rank 0 may have died meanwhile.
ORPHAN_S = 20.0


def main() -> int:
    """Answer waves until standard input closes; 1 when one failed."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    job = json.loads(sys.stdin.readline())
    waves: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    backend: Any = None
    try:
        backend = _backend(job, waves)
        backend.start()
        while (line := waves.get()) is not None:
            backend.generate([_request(values) for values in json.loads(line)])
        backend.close()
        return 0
    except BaseException as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        report.write(f"failed: {type(error).__name__}: {first[:300]}\n")
        report.flush()
        # Nothing is worth waiting for: other ranks may hang in an exchange with this one.
        os._exit(1)


def _backend(job: dict[str, Any], waves: queue.SimpleQueue[str | None]) -> Any:
    """The backend of this rank; from here on standard input is read by a thread."""
    threading.Thread(target=_listen, args=(waves,), daemon=True).start()
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from nondet.backends.hf import HFBackend
    from nondet.settings import setting_from

    from .group import WAIT_S, Ranks, device_of
    from .team import HOST

    setting = setting_from(job["setting"])
    rank, size = job["rank"], setting.gpus
    store = TCPStore(HOST, job["port"], size, is_master=False, timeout=timedelta(seconds=WAIT_S))
    group = Ranks(rank, size, store, device_of(job["kind"], rank, size))
    return HFBackend(setting, job["model_path"], group)


def _listen(waves: queue.SimpleQueue[str | None]) -> None:
    for line in sys.stdin:
        waves.put(line)
    waves.put(None)
    threading.Event().wait(ORPHAN_S)
    os._exit(1)


def _request(values: dict[str, Any]) -> Request:
    return Request(**{**values, "prompt_tokens": tuple(values["prompt_tokens"])})


if __name__ == "__main__":
    sys.exit(main())
