"""Comparing mathematics, in a process of its own: started as a script, no nondet import.

Reads one JSON list [gold, given] a line and answers one JSON list [verdict, reading] a line;
verdict is right, wrong or unreadable. CPU seconds for one line are limited by the kernel
(RLIMIT_CPU): a comparison that hangs kills this process, and the caller knows which one it was.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import random
import resource
import sys
import time
from typing import Any

LONGEST = 300  # characters of a reading


def limit_cpu(seconds: int) -> None:
    """Allow this process that much more CPU time, at most one second longer."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, hard))


def limit_memory(gib: int) -> None:
    """No more address space than that."""
    resource.setrlimit(resource.RLIMIT_AS, (gib * 2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main(cpu_s: int) -> None:
    """Compare until standard input ends."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    points = importlib.import_module("sympy.core.random")
    logging.disable(logging.CRITICAL)
    limit_memory(3)
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="none"
        )
    )

    def read(text: str) -> list[Any]:
        config = [latex, ExprExtractionConfig()]
        options = {"parsing_timeout": None, "fallback_mode": "no_fallback"}
        return list(parse(text, extraction_config=config, **options))

    read_gold = functools.lru_cache(maxsize=4096)(read)

    def judge(gold: str, given: str) -> list[str]:
        # sympy tests equality at random points: the same points for the same question.
        random.seed(0)
        points.seed(0)
        reading = read(f"${given}$")
        if not reading:
            return ["unreadable", ""]
        same = verify(read_gold(f"${gold}$"), reading, timeout_seconds=None)
        return ["right" if same else "wrong", str(reading[0])[:LONGEST]]

    for line in sys.stdin:
        limit_cpu(cpu_s)
        print(json.dumps(judge(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
