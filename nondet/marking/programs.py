"""Programs: the last fenced block of the response, run against the item's tests in the sandbox.

An item's meta has either

    setup, entry, test     trusted texts: ``test`` defines ``check(candidate)`` (HumanEval)
    entry, public, private the cases of LiveCodeBench, as stored (``cases``); entry is null where
                           the program reads standard input

Every test has a budget of its own; the first that does not pass ends the item. The note of a
wrong program is the test's place, from 1, and the sandbox's verdict.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from nondet.marking.base import Answered, Mark, Outcome
from nondet.marking.boxes import after_thought
from nondet.marking.cases import Case, read_cases, same_output
from nondet.marking.sandbox import Limits, Sandbox, SandboxError, Verdict

_FENCE = re.compile(r"^[ \t]{0,8}```+[ \t]*([\w+.-]{0,20})[^\n`]{0,80}$", re.MULTILINE)
_DEFINES = re.compile(r"^(?:def|class|import|from|@)\b", re.MULTILINE)
# What LiveCodeBench answers may use without an import of their own, as on the contest sites.
PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log2, perm, pi, sqrt
from typing import *
"""


class CodeMarker:
    """Runs programs. ``workers`` sandboxes at a time; it changes no verdict."""

    name: ClassVar[str] = "code"
    version: ClassVar[str] = f"code-1/python-{sys.version_info.major}.{sys.version_info.minor}"

    def __init__(
        self, limits: Limits | None = None, workers: int = 1, level: str | None = None
    ) -> None:
        self.limits, self.workers, self.level = limits or Limits(), workers, level

    def confinement(self) -> str:
        """What holds programs on this machine, in one line."""
        with Sandbox(self.limits, self.level) as sandbox:
            return sandbox.describe()

    def mark(self, answers: Sequence[Answered]) -> list[Mark]:
        """One Mark an answer."""
        local, opened = threading.local(), list[Sandbox]()

        def judge(answered: Answered) -> Mark:
            code = program(answered)
            if code is None:
                cut = answered.truncated
                return Mark(Outcome.TRUNCATED_NO_ANSWER if cut else Outcome.NO_ANSWER)
            try:
                if not hasattr(local, "sandbox"):
                    local.sandbox = Sandbox(self.limits, self.level)
                    opened.append(local.sandbox)
                return run_tests(local.sandbox, answered, code)
            except (SandboxError, ValueError) as error:
                return Mark(Outcome.MARKER_ERROR, note=str(error).splitlines()[0][:200])

        try:
            if self.workers == 1:
                return [judge(answered) for answered in answers]
            with ThreadPoolExecutor(self.workers) as pool:
                return list(pool.map(judge, answers))
        finally:
            for sandbox in opened:
                sandbox.close()


def program(answered: Answered) -> str | None:
    """The program in a response: the last closed fenced block, or a text that is code.

    A block that is still open counts only when the response came to its end by itself. A
    response without a fence counts when it defines or imports something on its first line, or
    is the indented continuation of a function.
    """
    final = after_thought(answered.text)
    if final is None:
        return None
    fences = [(found.start(), found.end(), found[1]) for found in _FENCE.finditer(final)]
    if not fences:
        code = final.rstrip()
        first = next(filter(str.strip, code.split("\n")), "")
        starts = _DEFINES.match(first) is not None or first[:1] in (" ", "\t")
        return code if starts and not answered.truncated else None
    blocks, place = [], 0
    while place + 1 < len(fences):
        blocks.append(final[fences[place][1] : fences[place + 1][0]])
        place += 2
    if place < len(fences) and not answered.truncated:
        blocks.append(final[fences[place][1] :])
    written = [block.strip("\n") for block in blocks if block.strip()]
    return written[-1] if written else None


def digest_of(code: str) -> str:
    """What stands in the answer column for a program."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def run_tests(sandbox: Sandbox, answered: Answered, code: str) -> Mark:
    """Run an item's tests in order until one does not pass."""
    meta = answered.item.meta
    if "test" in meta:
        whole = assemble(meta["setup"], meta["entry"], code)
        verdict = sandbox.run_check(whole, meta["entry"], meta["setup"], meta["test"])
        return _mark(code, "" if verdict.kind == "pass" else f"{verdict.kind} {verdict.note}")
    cases = read_cases(meta["public"], meta["private"])
    if not cases:
        raise ValueError("the item has no tests")
    run: Callable[[Case], Verdict]
    if meta["entry"]:
        run = lambda case: sandbox.run_check(PRELUDE + code, meta["entry"], "", case.as_test())  # noqa: E731
    else:
        run = lambda case: _compare(sandbox.run_script(PRELUDE + code, case.given), case)  # noqa: E731
    for place, case in enumerate(cases, 1):
        verdict = run(case)
        if verdict.kind != "pass":
            where = f"test {place} of {len(cases)}: "
            return _mark(code, f"{where}{verdict.kind} {verdict.note}")
    return _mark(code, "")


def assemble(setup: str, entry: str, code: str) -> str:
    """The whole program: the prompt's own imports and functions first, then the response."""
    defines = re.search(rf"^\s*(?:async\s+)?def\s+{re.escape(entry)}\b", code, re.MULTILINE)
    return f"{setup}\n\n{code}\n" if defines else f"{setup}{code}\n"


def _compare(verdict: Verdict, case: Case) -> Verdict:
    if verdict.kind != "ok":
        return verdict
    return Verdict("pass" if same_output(verdict.stdout, case.wanted) else "wrong")


def _mark(code: str, failure: str) -> Mark:
    outcome = Outcome.WRONG if failure else Outcome.RIGHT
    return Mark(outcome, digest_of(code), failure.strip())
