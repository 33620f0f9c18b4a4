"""Timing for small kernels: CUDA graphs over rotating operands that together exceed the L2."""

from __future__ import annotations

import csv
import multiprocessing
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

PEAK_BYTES = 4.3e12
"""Bytes a second that a device-to-device copy reaches on the H200; the memory floor's divisor."""
PEAK_FLOPS = 790e12
"""bf16 operations a second that a large product on random data reaches on the H200."""
ROTATE_BYTES = 160e6


def graph_us(calls: Sequence[Callable[[], Any]], replays: int = 5) -> float:
    """Median microseconds of one call, from replays of a graph that makes all ``calls`` once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def copies(bytes_each: float, least: int = 8, most: int = 200) -> int:
    """How many copies of an operand to rotate through so that the L2 never holds it."""
    return int(min(most, max(least, ROTATE_BYTES // max(bytes_each, 1) + 1)))


def hardware() -> dict[str, str]:
    """What the figures were measured on: GPU, driver, torch, CUDA, Triton, Python."""
    import triton

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[
        0
    ]
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": driver.strip(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Tidy CSV, one measurement a row, hardware and versions in every row."""
    where = hardware()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *where])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, **where})


def warm(function: Callable[[list[Any]], None], jobs: Sequence[Any]) -> None:
    """Compile ahead: share ``jobs`` among processes, which fill Triton's cache on disk."""
    parts = min(16, os.cpu_count() or 1, max(len(jobs), 1))
    context = multiprocessing.get_context("spawn")
    pool = [context.Process(target=function, args=(list(jobs[i::parts]),)) for i in range(parts)]
    for process in pool:
        process.start()
    for process in pool:
        process.join()
