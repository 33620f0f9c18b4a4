"""Tokens/s, time to first token and memory of the number formats; alone on a GPU.

    python experiments/precision/speed.py MODEL_FOLDER OUT.csv [TOKENS REPEATS]

One row a wave of 64-token prompts, after a warm-up wave. Decoding is measured as transformers does
it, where a small model waits for the host, and with its steps as CUDA graphs, where the kernels
decide. ``step_ms``: time of a decode step, without the prefill and the capture of the graph;
``forward_ms``: the model's part of it on the GPU (median of the replays), without what ``generate``
and the recording of log-probabilities do between two steps.
``peak_mb``: most device memory allocated in the wave. A variant that fails leaves its reason.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nondet.backends.base import Request
from nondet.backends.hf import HFBackend
from nondet.backends.hf_graph import captured
from nondet.environment import cpu_name, gpu_names, versions
from nondet.settings import setting_from

COLUMNS = (
    *("dtype", "product", "kernels", "cuda_graph", "batch_size", "repeat", "tokens", "seconds"),
    *("tokens_per_s", "first_token_s", "step_ms", "weights_mb", "cache_mb", "peak_mb", "load_s"),
    *("forward_ms", "load_peak_mb", "reason", "model", "hardware", "versions"),
)
DTYPES = (("bf16", "auto"), ("fp16", "auto"), ("layercast", "fused"), ("layercast", "plain"),
          ("fp32", "auto"))  # fmt: skip
INVARIANT = (("bf16", "auto"), ("layercast", "auto"), ("fp32", "auto"))
BATCHES = tuple(int(b) for b in os.environ.get("BATCHES", "1,8,64").split(","))
PROMPT = 64


def variants(cuda: bool) -> Iterator[dict[str, Any]]:
    """Formats in graphs, invariant kernels in graphs, and last, where the host decides, neither."""
    formats = [one for one in DTYPES if cuda or one[1] != "fused"]
    for kernels, chosen in (("default", formats), ("invariant", INVARIANT)):
        for dtype, product in chosen:
            yield {"dtype": dtype, "product": product, "kernels": kernels, "graph": cuda}
    for dtype, product in formats if cuda else ():
        yield {"dtype": dtype, "product": product, "kernels": "default", "graph": False}


class Clock:
    """Captures a decode step like ``hf_graph.captured`` and times every replay on the GPU."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, Any]] = []

    def __call__(self, call: Callable[[], Any]) -> Callable[[], Any]:
        replay = captured(call)

        def timed() -> Any:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            output = replay()
            end.record()
            self.events.append((start, end))
            return output

        return timed

    def read_ms(self) -> float | None:
        """Median milliseconds since the last call."""
        if not self.events:
            return None
        torch.cuda.synchronize()
        found = float(np.median([start.elapsed_time(end) for start, end in self.events]))
        self.events.clear()
        return round(found, 4)


def requests(count: int) -> list[Request]:
    """Prompts from a fixed seed, of ids that small vocabularies have too."""
    ids = np.random.default_rng(7).integers(10, 250, (count, PROMPT))
    return [Request(str(n), tuple(int(t) for t in row)) for n, row in enumerate(ids)]


def device_mb() -> float | None:
    """Most device memory since the last call."""
    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated() / 1e6
    torch.cuda.reset_peak_memory_stats()
    return round(peak, 1)


def wave(backend: Any, count: int, tokens: int) -> dict[str, Any]:
    """One wave of ``count`` requests and ``tokens`` new tokens."""
    backend.setting = replace(backend.setting, max_new_tokens=tokens, batch_size=count)
    backend.cache_bytes = 0
    device_mb()
    began = time.perf_counter()
    made = sum(len(r.tokens) for r in backend.generate(requests(count)))
    seconds = time.perf_counter() - began
    step = (seconds - backend.first_token_s) / max(tokens - 1, 1)
    return {
        "batch_size": count,
        "tokens": made,
        "seconds": round(seconds, 4),
        "tokens_per_s": round(made / seconds, 1),
        "first_token_s": round(backend.first_token_s, 5),
        "step_ms": round(step * 1e3, 4),
        **{name: round(mb or 0, 2) for name, mb in backend.memory_mb().items()},
        "peak_mb": device_mb(),
    }


def step_ms(long: dict[str, Any], short: dict[str, Any]) -> float:
    """A step from two waves of different length: what both pay for once falls out."""
    steps = (long["tokens"] - short["tokens"]) / long["batch_size"]
    seconds = (long["seconds"] - long["first_token_s"]) - (
        short["seconds"] - short["first_token_s"]
    )
    return round(seconds / steps * 1e3, 4)


@contextlib.contextmanager
def opened(model: str, variant: dict[str, Any]) -> Iterator[HFBackend]:
    """The backend of a variant, started, and ended whatever happens."""
    options: dict[str, Any] = {"name": "hf", "product": variant["product"]}
    if variant["graph"]:
        options |= {"cache": "static", "cuda_graph": True}
    setting = setting_from(
        {"backend": options, "dtype": variant["dtype"], "kernels": variant["kernels"]}
    )
    HFBackend.check(setting)
    backend = HFBackend(setting, model)
    backend.start()
    # An id that no prompt and hardly an answer holds, so that every wave has its full length.
    backend.stop_ids = (backend.model.config.vocab_size - 1,)
    try:
        yield backend
    finally:
        backend.close()


def measure(model: str, variant: dict[str, Any], tokens: int, repeats: int) -> list[dict[str, Any]]:
    """All batch sizes of one variant in one backend."""
    device_mb()
    began = time.perf_counter()
    rows = []
    with opened(model, variant) as backend:
        load = {"load_s": round(time.perf_counter() - began, 2), "load_peak_mb": device_mb()}
        clock = Clock()
        if backend.graphs is not None:
            backend.graphs.capture = clock
        for batch in BATCHES:
            wave(backend, batch, 4)
            short = wave(backend, batch, max(tokens // 4, 4))
            clock.read_ms()
            for repeat in range(repeats):
                row = wave(backend, batch, tokens)
                row["forward_ms"] = clock.read_ms()
                row["step_ms"] = step_ms(row, short)
                rows.append({**row, **load, "repeat": repeat})
    return rows


def main(words: Sequence[str]) -> None:
    """Measure every variant; append to the CSV as they come."""
    model, out = words[0], Path(words[1])
    tokens, repeats = (int(w) for w in words[2:4] or ("96", "2"))
    found = versions(HFBackend.packages())
    shared = {
        "model": Path(model).name,
        "hardware": ", ".join(gpu_names()) or f"{cpu_name()}, {os.cpu_count()} cores",
        "versions": json.dumps({"python": platform.python_version(), **found}),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for variant in variants(torch.cuda.is_available()):
            began = time.perf_counter()
            named = {k: v for k, v in variant.items() if k != "graph"}
            named["cuda_graph"] = variant["graph"]
            try:
                rows = measure(model, variant, tokens, repeats)
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                rows = [{"reason": reason}]
            for row in rows:
                writer.writerow({**named, **row, **shared})
                kept = ("batch_size", "tokens_per_s", "step_ms", "forward_ms", "peak_mb", "reason")
                print(*named.values(), {k: row.get(k) for k in kept}, flush=True)
            file.flush()
            gc.collect()
            torch.cuda.empty_cache()
            print(f"  {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
