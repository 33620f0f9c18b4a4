"""Test cases of LiveCodeBench as they are stored, and the comparison of outputs."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any


@dataclass(frozen=True)
class Case:
    """One test: what is given and what is wanted, as texts."""

    given: str
    wanted: str

    def as_test(self) -> str:
        """Trusted text that calls ``candidate``: one JSON argument a line, one JSON result."""
        return (
            "import json\n"
            "def plain(value):\n"
            "    if isinstance(value, (list, tuple)):\n"
            "        return [plain(part) for part in value]\n"
            "    return value\n"
            "def check(candidate):\n"
            f"    given = [json.loads(line) for line in {self.given!r}.split('\\n') if line]\n"
            f"    assert plain(candidate(*given)) == json.loads({self.wanted!r})\n"
        )


class _TextOnly(pickle.Unpickler):
    """Unpickles a text and refuses everything that could run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def read_cases(public: str, private: str) -> list[Case]:
    """All cases of a problem, public ones first.

    public: a JSON list of {input, output, testtype}. private: the same, either as JSON or as
    base64 of zlib of a pickled JSON text, which is how the data set packs it. Raises ValueError.
    """
    try:
        rows = json.loads(public or "[]") + _private(private)
        return [Case(str(row["input"]), str(row["output"])) for row in rows]
    except (ValueError, KeyError, TypeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"the item's tests cannot be read: {error}") from error


def _private(text: str) -> list[dict[str, Any]]:
    if not text or text.lstrip().startswith("["):
        rows: list[dict[str, Any]] = json.loads(text or "[]")
        return rows
    try:
        packed = zlib.decompress(base64.b64decode(text))
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from error
    unpacked: list[dict[str, Any]] = json.loads(_TextOnly(io.BytesIO(packed)).load())
    return unpacked


def same_output(printed: str, wanted: str) -> bool:
    """Whether a printed output is the wanted one: line by line, spaces at the ends aside.

    Numbers may be written differently (1.0 and 1) but must be equal; no tolerance.
    """
    ours, theirs = _lines(printed), _lines(wanted)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    pairs = list(zip(ours.split(), theirs.split(), strict=False))
    return len(ours.split()) == len(theirs.split()) and all(
        a == b or _equal(a, b) for a, b in pairs
    )


def _equal(a: str, b: str) -> bool:
    try:
        return a == b or Decimal(a) == Decimal(b)
    except InvalidOperation:
        return False
