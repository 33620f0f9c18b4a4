"""Where the time of a decode step goes, kernel by kernel.

    python experiments/precision/profile_step.py MODEL_FOLDER OUT.csv [BATCH ...]

Two waves of different length are recorded by torch's profiler; their difference, divided by the
steps it holds, is a step without prefill and capture. One row a kernel (on a CPU: an operation) of
each variant: calls and microseconds a step, and its share of the time that kernels take in it.
Steps run as CUDA graphs where there is a GPU, so the host is not part of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile

from experiments.precision.speed import opened, wave
from nondet.csv_files import save_csv
from nondet.environment import cpu_name, gpu_names

VARIANTS = (
    ("bf16", "auto", "default"),
    ("fp32", "auto", "default"),
    ("layercast", "auto", "default"),
    ("layercast", "auto", "invariant"),
)
SHORT, LONG = 8, 24
NAME = 100  # characters of a kernel's name: templates of the same head are one row


def times_of(backend: Any, batch: int, tokens: int) -> pd.DataFrame:
    """Calls and microseconds of one wave by kernel name."""
    on_gpu = torch.cuda.is_available()
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        wave(backend, batch, tokens)
        if on_gpu:
            torch.cuda.synchronize()
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = [(one.key[:NAME], one.count, getattr(one, field)) for one in seen.key_averages()]
    return pd.DataFrame(rows, columns=["kernel", "calls", "us"]).groupby("kernel").sum()


def step_of(backend: Any, batch: int) -> pd.DataFrame:
    """A decode step: (kernel, calls, us, share), the longest first."""
    wave(backend, batch, SHORT)  # the prefill's and the step's first calls choose and compile
    short, long = (times_of(backend, batch, tokens) for tokens in (SHORT, LONG))
    step = long.sub(short, fill_value=0) / (LONG - SHORT)
    step = step[step["calls"] > 0].sort_values("us", ascending=False).reset_index()
    return step.assign(share=step["us"] / step["us"].sum())


def main(words: Sequence[str]) -> None:
    """Profile every variant; write the CSV after each."""
    model, out = words[0], Path(words[1])
    batches = [int(word) for word in words[2:]] or [1, 64]
    hardware = ", ".join(gpu_names()) or f"{cpu_name()}, {os.cpu_count()} cores"
    found: list[pd.DataFrame] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    for dtype, product, kernels in VARIANTS:
        variant = {"dtype": dtype, "product": product, "kernels": kernels}
        with opened(model, {**variant, "graph": torch.cuda.is_available()}) as backend:
            for batch in batches:
                step = step_of(backend, batch)
                print(f"{dtype} {kernels} batch {batch}: {step['us'].sum():.0f} us in kernels")
                print(step.head(12).to_string(index=False, max_colwidth=60), flush=True)
                found.append(step.assign(**variant, batch_size=batch, hardware=hardware))
        save_csv(pd.concat(found), out)


if __name__ == "__main__":
    main(sys.argv[1:])
