"""Norms, softmax, reductions and argmax against torch's own, on the GPU.

    PYTHONPATH=kernels python kernels/bench/bench_rows.py OUT.csv [seconds]

Median microseconds from CUDA graphs over rotating inputs that exceed the L2; the memory floor
counts each input and output once at the bandwidth of a copy. Where vLLM is importable its own
batch-invariant kernels are timed too (column vllm_us).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
import timing
import torch
from nondet_kernels import argmax, norm, reduce, softmax

HIDDEN = [576, 1536, 4096]
VOCAB = [49152, 128256, 151936]
ROWS = [1, 8, 64, 512, 2048, 8192]


def operations(
    d: int, dtype: torch.dtype
) -> dict[str, tuple[Callable[..., Any], Callable[..., Any], int]]:
    """Name -> (ours, torch's, bytes of output per input element)."""
    w = torch.randn(d, device="cuda").to(dtype)
    f, size = torch.nn.functional, dtype.itemsize
    table: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
        "softmax": (lambda x: softmax.softmax(x, -1), lambda x: torch.softmax(x, -1), size),
        "log_softmax": (
            lambda x: softmax.log_softmax(x, -1),
            lambda x: torch.log_softmax(x, -1),
            size,
        ),
        "mean": (lambda x: reduce.mean(x, -1), lambda x: torch.mean(x, -1), 0),
        "sum": (lambda x: reduce.sum(x, -1), lambda x: torch.sum(x, -1), 0),
        "argmax": (lambda x: argmax.argmax(x, -1), lambda x: torch.argmax(x, -1), 0),
    }
    if d <= 8192:
        table["rms_norm"] = (lambda x: norm.rms_norm(x, w, 1e-6),
                             lambda x: f.rms_norm(x, (d,), w, 1e-6), size)  # fmt: skip
        table["layer_norm"] = (lambda x: norm.layer_norm(x, [d], w, w),
                               lambda x: f.layer_norm(x, (d,), w, w), size)  # fmt: skip
        table["mean_outer"] = (lambda x: reduce.mean(x, 0), lambda x: torch.mean(x, 0), 0)
    return table


def cases() -> list[tuple[int, int, torch.dtype]]:
    found = [(m, d, torch.bfloat16) for d in HIDDEN + VOCAB for m in ROWS]
    found += [(m, d, torch.float32) for d in (4096, 151936) for m in ROWS]
    return [(m, d, t) for m, d, t in found if m * d < 2**29]


def compile_some(work: list[tuple[int, int, torch.dtype]]) -> None:
    for m, d, dtype in work:
        x = torch.zeros((m, d), dtype=dtype, device="cuda")
        for ours, _, _ in operations(d, dtype).values():
            ours(x)


def main() -> None:
    start = time.time()
    limit = float(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2][0] != "-" else 1e9
    timing.warm(compile_some, cases())
    if "--warm" in sys.argv:
        return
    rows = []
    with torch.no_grad():
        for m, d, dtype in cases():
            if time.time() - start > limit:
                print("out of time", flush=True)
                break
            size = m * d * dtype.itemsize
            many = timing.copies(size, least=3, most=40)
            inputs = list(torch.randn((many, m, d), device="cuda").to(dtype))
            for name, (ours, theirs, extra) in operations(d, dtype).items():
                us = timing.graph_us([lambda x=x: ours(x) for x in inputs], 3)
                other = timing.graph_us([lambda x=x: theirs(x) for x in inputs], 3)
                peer = peers.rows(name, torch.ones(d, device="cuda", dtype=dtype))
                vllm_us = peers.timed([peer and (lambda x=x: peer(x)) for x in inputs], 3)
                floor = (size + m * d * extra) / timing.PEAK_BYTES * 1e6
                rows.append(dict(op=name, m=m, d=d, dtype=str(dtype)[6:], us=round(us, 3),
                                 torch_us=round(other, 3), ratio=round(other / us, 4),
                                 vllm_us=vllm_us, vllm=peers.version(),
                                 floor_us=round(floor, 3),
                                 floor_percent=round(100 * floor / us, 1)))  # fmt: skip
    timing.write_csv(Path(sys.argv[1]), rows)
    for name in sorted({r["op"] for r in rows}):
        mine = [r for r in rows if r["op"] == name]
        mean = math.exp(sum(math.log(r["ratio"]) for r in mine) / len(mine))
        print(f"{name:12s} geometric mean {mean:.3f} of torch over {len(mine)} sizes; by (m, d):",
              " ".join(f"{r['m']}x{r['d']}{'f' if r['dtype'] == 'float32' else ''}:{r['ratio']:.2f}"
                       for r in mine))  # fmt: skip


if __name__ == "__main__":
    main()
