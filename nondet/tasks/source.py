"""Reading rows: JSON lines with exact error places, and options with their types checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nondet.settings import Scalar, SettingError


def read_lines(path: Path, key: str = "task.path") -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number (from 1) and object of every non-empty line of a JSONL file, one at a time.

    Raises SettingError for a file that is missing or cannot be read and for the first line that
    is no JSON object.
    """
    if not path.is_file():
        raise SettingError(key, path, "an existing JSONL file")
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(path, number, line, key)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(key, path, f"a readable UTF-8 file ({error})") from error


def _object(path: Path, number: int, line: str, key: str) -> dict[str, Any]:
    place = f"{path}:{number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(key, place, f"one JSON object a line ({reason})") from error
    if not isinstance(row, dict):
        raise SettingError(key, place, f"one JSON object a line, not {type(row).__name__}")
    return row


def only_options(options: Mapping[str, Scalar], known: Mapping[str, type]) -> None:
    """Check task options against their types. Raises SettingError for the first bad one."""
    for name, value in options.items():
        if name not in known:
            valid = ", ".join(known) or "none"
            raise SettingError(f"task.{name}", value, f"left out: this task's options are {valid}")
        right = isinstance(value, known[name]) and not (
            isinstance(value, bool) and known[name] is not bool
        )
        if value is not None and not right:
            raise SettingError(f"task.{name}", value, f"of type {known[name].__name__}")
