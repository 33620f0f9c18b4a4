"""Property cases in many processes that share the GPU, and the table made from their rows.

A row is what one case found: ``op``, ``dtype``, one bool a comparison (True: equal bits; may be a
tensor), and the error of ours and of torch's result over ``elements`` elements. Rows are kept in
``OUT.rows.jsonl``: the same command carries on a run that the clock ended, and parts that ran
elsewhere are joined, as long as code, versions and GPU are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nondet_kernels
import timing
import torch

DTYPES = ["bfloat16", "float16", "float32", "float64"]
Row = dict[str, Any]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``seeds`` are the draws of the part asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path, metavar="OUT.csv")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--part", default="1/1", metavar="I/N", help="one of N parts of the draws")
    parser.add_argument("--join", type=Path, nargs="*", default=[], metavar="ROWS.jsonl",
                        help="rows of other parts, to count in the table too")  # fmt: skip
    given = parser.parse_args(words)
    part, parts = map(int, given.part.split("/"))
    if not 1 <= part <= parts:
        parser.error(f"--part {given.part}: I from 1 to N expected")
    given.seeds = range(given.draws * (part - 1) // parts, given.draws * part // parts)
    return given


class Ledger:
    """Rows on disk, headed by what they were made with."""

    def __init__(self, path: Path, made_with: dict[str, str]) -> None:
        """Raises: ValueError: the file holds rows of other code, versions or another GPU."""
        self.path, self.made_with = path, made_with
        self.rows = self.read(path) if path.exists() else []
        # Written anew, because the last line of a run that was killed may be half a line.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in (made_with, *self.rows)))

    def read(self, path: Path) -> list[Row]:
        """The whole lines of a file of rows made with the same."""
        head, *lines = path.read_text().split("\n")
        if json.loads(head) != self.made_with:
            raise ValueError(f"{path} was made with {head}, not {json.dumps(self.made_with)}")
        return [json.loads(line) for line in lines[:-1]]

    def add(self, rows: list[Row]) -> None:
        self.rows += rows
        with self.path.open("a") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


def code(function: Callable[..., Row]) -> str:
    """Digest of the kernels, of the draws and of the case itself."""
    package = Path(inspect.getfile(nondet_kernels)).parent
    files = [*sorted(package.glob("*.py")), *sorted(package.glob("tables/*.json"))]
    files += [Path(__file__).with_name("operations.py"), Path(inspect.getfile(function))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


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
            rows.append({"call": str(call), **function(*call)})
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            rows.append({"call": str(call), "error": text[:300]})
    rows = answered(rows)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # The processes share one memory.
    return rows


def answered(rows: list[Row]) -> list[Row]:
    """The rows with their comparisons read back, all at once: waiting for each is what costs."""
    places = [(row, name) for row in rows for name in row if isinstance(row[name], torch.Tensor)]
    if places:
        found = torch.stack([row[name] for row, name in places]).tolist()
        for (row, name), value in zip(places, found, strict=True):
            row[name] = value
    return rows


def run(function: Callable[..., Row], jobs: Sequence[list[tuple[Any, ...]]],
        given: argparse.Namespace) -> list[Row]:  # fmt: skip
    """Rows of ``function(*call)`` for every call of every job; a job stays in one process.

    Calls whose rows are on disk are not made again. Stops after ``given.seconds``; a process that
    hangs is given up twenty seconds later.
    """
    real = str("ACTIVATIONS" in os.environ)  # They are one more kind of data to draw.
    made_with = {**timing.hardware(), "code": code(function), "activations": real}
    ledger = Ledger(given.path.with_suffix(".rows.jsonl"), made_with)
    done = {row["call"] for row in ledger.rows}
    left = [[call for call in calls if str(call) not in done] for calls in jobs]
    left = [calls for calls in left if calls]
    if left:
        _share(function, left, ledger, given)
    wanted = sum(map(len, jobs))
    print(f"{len(done)} cases were on disk, {len(ledger.rows)} of {wanted} are now", flush=True)
    joined = [row for path in given.join for row in ledger.read(path)]
    return list({row["call"]: row for row in (*joined, *ledger.rows)}.values())


def _share(function: Callable[..., Row], jobs: list[list[tuple[Any, ...]]], ledger: Ledger,
           given: argparse.Namespace) -> None:  # fmt: skip
    ends = time.time() + given.seconds
    with multiprocessing.get_context("spawn").Pool(given.processes, _prepare, (ends,)) as pool:
        found = pool.imap_unordered(_work, [(function, calls) for calls in jobs])
        try:
            for _ in jobs:
                ledger.add(found.next(timeout=max(1.0, min(ends - time.time(), 1e6)) + 20))
        except multiprocessing.TimeoutError:
            print("gave up waiting: a process hangs", flush=True)


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
