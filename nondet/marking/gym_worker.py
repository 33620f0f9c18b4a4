"""Scoring answers of reasoning-gym, in a process of its own: started as a script.

Reads one JSON list [generator, options, index, answer] a line and answers one JSON list
[score, note] a line. Some of its scorers evaluate the answer as code: before the first one this
process gives up sockets, new processes and signals to others.
"""

from __future__ import annotations

import ctypes
import functools
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any


def limit_cpu(seconds: int) -> None:
    """Allow this process that much more CPU time, at most one second longer."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, hard))


def main(cpu_s: int) -> None:
    """Score until standard input ends."""
    sys.path.insert(0, str(Path(__file__).parent))
    from jail import seccomp  # type: ignore[import-not-found]

    del sys.path[0]
    import reasoning_gym

    replies = sys.stdout
    sys.stdout = sys.stderr  # some scorers print
    resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    seccomp.refuse_calls(ctypes.CDLL(None, use_errno=True))

    @functools.lru_cache(maxsize=64)
    def dataset(generator: str, options: str) -> Any:
        return reasoning_gym.create_dataset(generator, **json.loads(options))

    for line in sys.stdin:
        limit_cpu(cpu_s)
        random.seed(0)
        try:
            generator, options, index, answer = json.loads(line)
            data = dataset(generator, options)
            reply: list[Any] = [float(data.score_answer(answer, data[index])), ""]
        except Exception as error:
            reply = [None, type(error).__name__]
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
