"""Property cases in many processes that share the GPU, and the table made from their rows.

A row is what one case found: ``op``, ``dtype``, one bool a comparison (True: equal bits; may be a
tensor), and the error of ours and of torch's result over ``elements`` elements.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timing
import torch

DTYPES = ["bfloat16", "float16", "float32", "float64"]
Row = dict[str, Any]


def arguments() -> tuple[Path, range, float, int]:
    """OUT.csv [cases] [seconds] [processes] [first seed] of a command line."""
    given = [*sys.argv[1:], *["", "", "", "", ""]]
    processes = int(given[3] or min(14, os.cpu_count() or 1))
    first = int(given[4] or 0)
    seeds = range(first, first + int(given[1] or 2000))
    return Path(given[0]), seeds, float(given[2] or 1e9), processes


def _prepare(ends: float) -> None:
    global _ends
    _ends = ends
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


_ends = float("inf")


def _work(job: tuple[Callable[..., Row], list[tuple[Any, ...]]]) -> list[Row]:
    function, calls = job
    rows: list[Row] = []
    for call in calls:
        if time.time() > _ends:
            break
        try:
            rows.append(function(*call))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            rows.append({"call": str(call), "error": text[:300]})
    return answered(rows)


def answered(rows: list[Row]) -> list[Row]:
    """The rows with their comparisons read back, all at once: waiting for each is what costs."""
    places = [(row, name) for row in rows for name in row if isinstance(row[name], torch.Tensor)]
    if places:
        found = torch.stack([row[name] for row, name in places]).tolist()
        for (row, name), value in zip(places, found, strict=True):
            row[name] = value
    return rows


def run(function: Callable[..., Row], jobs: Sequence[list[tuple[Any, ...]]], limit: float,
        processes: int) -> list[Row]:  # fmt: skip
    """Rows of ``function(*call)`` for every call of every job; a job stays in one process.

    Stops after ``limit`` seconds; a process that hangs is given up twenty seconds later.
    """
    ends = time.time() + limit
    rows: list[Row] = []
    with multiprocessing.get_context("spawn").Pool(processes, _prepare, (ends,)) as pool:
        found = pool.imap_unordered(_work, [(function, calls) for calls in jobs])
        try:
            for _ in jobs:
                rows += found.next(timeout=max(1.0, min(ends - time.time(), 1e6)) + 20)
        except multiprocessing.TimeoutError:
            print("gave up waiting: a process hangs", flush=True)
    return rows


def report(path: Path, rows: list[Row], ops: Sequence[str], checks: Sequence[str]) -> int:
    """Write one line an operation and type, print what differs; the number of such cases."""
    errors = [row for row in rows if "error" in row]
    rows = [row for row in rows if "error" not in row]
    print(*errors[:8], sep="\n")
    lines = []
    for op in ops:
        for dtype in DTYPES:
            mine = [row for row in rows if row["op"] == op and row["dtype"] == dtype]
            if mine:
                lines.append({"op": op, "dtype": dtype, **_summary(mine, checks)})
                print(lines[-1])
    wrong = [row for row in rows if not all(row[check] for check in checks)]
    for row in wrong[:10]:
        print("DIFFERS", row)
    print(len(rows), "cases,", len(errors), "errors,", len(wrong), "differ", flush=True)
    if lines:
        timing.write_csv(path, lines)
    return len(wrong) + len(errors)


def _summary(mine: list[Row], checks: Sequence[str]) -> Row:
    judged = [row for row in mine if row["elements"]]
    total = sum(row["elements"] for row in judged) or 1
    line: Row = {"cases": len(mine), **{c: sum(not row[c] for row in mine) for c in checks}}
    for who in ("", "torch_"):
        line[f"{who}max_ulp"] = round(max((r[f"{who}max_ulp"] for r in judged), default=0.0), 4)
        mean = sum(row[f"{who}mean_ulp"] * row["elements"] for row in judged) / total
        line[f"{who}mean_ulp"] = round(mean, 5)
    line["judged"] = len(judged)
    for kind in ("max", "mean"):
        theirs = line[f"torch_{kind}_ulp"]
        line[f"{kind}_ratio"] = round(line[f"{kind}_ulp"] / theirs, 3) if theirs else ""
    return line
