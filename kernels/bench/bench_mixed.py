"""FP32 by 16-bit products on the GPU: plans against each other, then ours against torch's.

    PYTHONPATH=kernels python kernels/bench/bench_mixed.py OUT_FOLDER [--tune]

OUT_FOLDER/kernels_mixed.csv: microseconds of ours with bf16 and fp16 weights, of torch's FP32 and
bf16 products, and of the plain way (an FP32 copy of the weights each time, then torch's product).
With --tune also kernels_mixed_plans.csv, every plan at every size. CUDA graphs over rotating
weights that exceed the L2. The floor is that of the bytes: weights in 16 bits, the rest in FP32.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import timing
import torch
from nondet_kernels.mixed import MixedPlan, mixed_linear, mixed_plan, mixed_slices
from nondet_kernels.support import cdiv

SHAPES = [(256, 1536), (1536, 1536), (8960, 1536), (1536, 8960), (151936, 1536), (1024, 4096),
          (4096, 4096), (14336, 4096), (4096, 14336)]  # fmt: skip
"""Layers of Qwen2.5-1.5B and Llama-3.1-8B as transformers keeps them."""
PROCESSORS = 132  # of the H200
ROWS = [1, 8, 16, 32, 64, 128, 512, 2048]
PLANS: dict[int, list[tuple[int, int, int, int, bool, int]]] = {
    16: [(16, 64, 4, 3, True, 1), (16, 64, 4, 5, True, 1), (16, 64, 4, 2, True, 2),
         (16, 64, 4, 3, True, 2), (16, 64, 4, 2, True, 4), (16, 64, 4, 4, False, 1),
         (16, 64, 4, 3, False, 2), (16, 128, 8, 3, True, 2), (16, 32, 4, 3, False, 2)],
    32: [(32, 64, 4, 3, True, 1), (32, 64, 4, 5, True, 1), (32, 64, 4, 2, True, 2),
         (32, 64, 4, 3, True, 2), (32, 128, 8, 3, True, 1)],
    64: [(32, 64, 4, 3, True, 1), (32, 64, 4, 3, True, 2), (64, 64, 4, 3, True, 1),
         (64, 64, 4, 2, True, 2), (64, 128, 8, 3, True, 1)],
    1 << 30: [(64, 64, 4, 3, True, 1), (64, 128, 8, 2, True, 1), (64, 128, 8, 3, True, 1),
              (128, 64, 8, 3, False, 1)],
}  # fmt: skip
"""Largest number of rows -> plans to try."""


def plans(m: int) -> list[MixedPlan]:
    """The plans to try for m rows."""
    return [MixedPlan(*p) for p in next(found for most, found in PLANS.items() if m <= most)]


Job = tuple[MixedPlan | None, torch.dtype, int, int, int, bool]
"""Plan (None: that of the table), type of the weights, M, N, K, bias: one kernel to compile."""


def compile_some(work: list[Job]) -> None:
    """Fill Triton's cache on disk; a plan that does not fit is left out here as well."""
    for how, kind, m, n, k, bias in work:
        x = torch.zeros((m, k), device="cuda")
        w = torch.zeros((n, k), device="cuda", dtype=kind)
        try:
            mixed_linear(x, w, w[:, 0].contiguous() if bias else None, how=how)
        except Exception as error:
            print("cannot", tuple(how or ()), type(error).__name__, str(error)[:120], flush=True)


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """One job for each kernel that the jobs need."""
    found: dict[Any, Job] = {}
    for how, kind, m, n, k, bias in jobs:
        own, count = how or mixed_plan(m, n, k), mixed_slices(n, k)[0]
        tiles = cdiv(m, own.bm) * cdiv(n, own.bn)
        key = (own, kind, count, count > 1 and tiles < PROCESSORS, k % 128 == 0, bias)
        found.setdefault(key, (own, kind, m, n, k, bias))
    return list(found.values())


def jobs(tune: bool) -> list[Job]:
    """The kernels that the run will need."""
    half, single = torch.float16, torch.bfloat16
    sizes = [(m, n, k) for m in ROWS for n, k in SHAPES]
    found: list[Job] = [(None, kind, *size, False) for size in sizes for kind in (single, half)]
    if tune:
        found += [(how, single, *size, False) for size in sizes for how in plans(size[0])]
    return distinct(found)


def us(calls: list[Callable[[], Any]], m: int) -> float | None:
    try:
        return round(timing.graph_us(calls, 4 if m <= 1024 else 2), 3)
    except Exception as error:
        print("failed", type(error).__name__, str(error)[:160], flush=True)
        torch.cuda.synchronize()
        return None


def measure(m: int, w: torch.Tensor, tune: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Times at m rows for copies of one weight (C, N, K) in bf16."""
    n, k = w.shape[1:]
    use = list(w)[:64] if m <= 128 else list(w)[:3]
    x = torch.randn((m, k), device="cuda")
    narrow, half, wide = x.bfloat16(), [v.half() for v in use], [v.float() for v in use]
    linear = torch.nn.functional.linear
    row: dict[str, Any] = {"n": n, "k": k, "m": m, "slices": mixed_slices(n, k)[0]}
    row["us"] = us([lambda v=v: mixed_linear(x, v) for v in use], m)
    row["fp16_us"] = us([lambda v=v: mixed_linear(x, v) for v in half], m)
    row["fp32_us"] = us([lambda v=v: linear(x, v) for v in wide], m)
    row["plain_us"] = us([lambda v=v: linear(x, v.float()) for v in use], m)
    row["bf16_us"] = us([lambda v=v: linear(narrow, v) for v in use], m)
    row["floor_us"] = round((2 * n * k + 4 * m * (n + k)) / timing.PEAK_BYTES * 1e6, 3)
    tried = []
    for how in plans(m) if tune else []:
        time_us = us([lambda v=v, how=how: mixed_linear(x, v, how=how) for v in use], m)
        tried.append({"n": n, "k": k, "m": m, **how._asdict(), "us": time_us})
    return row, tried


@torch.no_grad()
def main() -> None:
    start, out, tune = time.time(), Path(sys.argv[1]), "--tune" in sys.argv
    torch.backends.cuda.matmul.allow_tf32 = False
    timing.warm(compile_some, jobs(tune))
    print(f"compiled after {time.time() - start:.0f} s", flush=True)
    rows, tried = [], []
    for n, k in SHAPES:
        w = torch.randn((timing.copies(n * k * 2, 4), n, k), device="cuda").bfloat16() / 32
        for m in ROWS:
            row, more = measure(m, w, tune)
            rows.append(row)
            tried += more
        del w
        print(f"{n} x {k} after {time.time() - start:.0f} s", flush=True)
    timing.write_csv(out / "kernels_mixed.csv", rows)
    if tried:
        timing.write_csv(out / "kernels_mixed_plans.csv", tried)
    for m in ROWS:
        own = [r for r in rows if r["m"] == m and r["us"]]
        words = []
        for name in ("fp32_us", "plain_us", "bf16_us", "fp16_us", "floor_us"):
            logs = [math.log(r[name] / r["us"]) for r in own if r[name]]
            words.append(f"{name[:-3]} {math.exp(sum(logs) / max(len(logs), 1)):.2f}")
        print(f"M {m}: times of ours:", ", ".join(words), flush=True)
    print(f"done after {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
