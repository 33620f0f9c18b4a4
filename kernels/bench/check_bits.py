"""Property cases on the GPU: does a row's result depend on anything but the row?

    PYTHONPATH=kernels python kernels/bench/check_bits.py OUT.csv [cases] [seconds] [processes]

A case draws an operation's sizes, type, data and a row, and compares the row's bits between: the
row alone; the row in its batch; the row elsewhere in the batch; the row among neighbours that are
NaN, infinite or huge; and the same values behind other strides. It also compares the error against
float64 with that of torch's own operation. Cases run in several processes that share the GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import timing
import torch
from nondet_kernels import argmax
from operations import DTYPES, Batched, Product, Row, data, layouts, pick, same, ulps

ROWS = [
    1,
    2,
    3,
    5,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    200,
    255,
    256,
    257,
    300,
    511,
    512,
    513,
    777,
    1024,
    2048,
]


def case(name: str, seed: int) -> dict[str, Any]:
    gen = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    dtype = pick(DTYPES, gen)
    kind = pick(["normal", "wide", "cancelling", "outliers"], gen)
    kinds = {"matmul": Product, "addmm": Product, "linear": Product, "bmm": Batched}
    op = kinds.get(name, Row)("matmul" if name == "bmm" else name, gen, dtype, kind)
    width, ours = op.width, op.ours
    rows = pick(ROWS if width < 8192 else ROWS[:18], gen)
    x = data((rows, width), kind, dtype)
    if name == "argmax":
        x = (x * 2).round()  # Many ties.
    r = int(torch.randint(rows, (1,), generator=gen))
    alone = ours(x[r : r + 1].clone())[0]
    full = ours(x)
    found = {"alone": same(full[r], alone)}
    shift = int(torch.randint(rows, (1,), generator=gen))
    found["position"] = same(ours(x.roll(shift, 0))[(r + shift) % rows], alone)
    bad = torch.full_like(x, pick([float("nan"), float("inf"), torch.finfo(dtype).max], gen))
    bad[r] = x[r]
    found["neighbours"] = same(ours(bad)[r], alone)
    found["layout"] = same(ours(layouts(x, pick([0, 1, 2, 3], gen)))[r], alone)
    row = dict(op=name, seed=seed, dtype=str(dtype)[6:], data=kind, m=rows, d=width, **found)
    row.update(max_ulp=0.0, mean_ulp=0.0, torch_max_ulp=0.0, torch_mean_ulp=0.0, elements=0)
    if name == "argmax":
        row["max_ulp"] = float(not torch.equal(full, argmax.argmax_reference(x, -1)))
        return row
    few = x[:4]
    if few.numel() > 1e5 and seed % 8:
        return row
    truth, floor = op.exact(few)
    mine, other = ulps(full[: len(few)], truth, floor), ulps(op.torch(x)[: len(few)], truth, floor)
    if mine.numel():
        row.update(
            max_ulp=mine.max().item(),
            mean_ulp=mine.mean().item(),
            elements=mine.numel(),
            torch_max_ulp=other.max().item(),
            torch_mean_ulp=other.mean().item(),
        )
    return row


OPS = ["matmul", "addmm", "linear", "bmm", "rms_norm", "rms_norm_residual", "layer_norm", "softmax",
       "log_softmax", "mean", "sum", "argmax"]  # fmt: skip


def work(part: int, parts: int, cases: int, limit: float, queue: Any) -> None:
    start = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    rows = []
    for seed in range(part, cases, parts):
        for name in OPS:
            if time.time() - start > limit:
                break
            try:
                rows.append(case(name, seed))
            except Exception as error:
                rows.append(
                    dict(op=name, seed=seed, error=f"{type(error).__name__}: {error}"[:300])
                )
                if part == 0:
                    traceback.print_exc(limit=4)
    queue.put(rows)


def main() -> None:
    path, cases = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 1e9
    parts = int(sys.argv[4]) if len(sys.argv) > 4 else min(14, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = [
        context.Process(target=work, args=(i, parts, cases, limit, queue)) for i in range(parts)
    ]
    for p in pool:
        p.start()
    rows = [row for _ in pool for row in queue.get()]
    for p in pool:
        p.join()
    errors = [row for row in rows if "error" in row]
    for row in errors[:8]:
        print(row)
    rows = [row for row in rows if "error" not in row]
    summary = []
    for name in OPS:
        for dtype in [str(d)[6:] for d in DTYPES]:
            mine = [row for row in rows if row["op"] == name and row["dtype"] == dtype]
            if mine:
                summary.append(summarise(name, dtype, mine))
                print(summary[-1])
    for row in [r for r in rows if not all(r[c] for c in CHECKS)][:10]:
        print("DIFFERS", row)
    print(len(rows), "cases,", len(errors), "errors")
    timing.write_csv(path, summary)


CHECKS = ["alone", "position", "neighbours", "layout"]


def summarise(name: str, dtype: str, mine: list[dict[str, Any]]) -> dict[str, Any]:
    elements = sum(r["elements"] for r in mine) or 1
    mean = sum(r["mean_ulp"] * r["elements"] for r in mine) / elements
    torch_mean = sum(r["torch_mean_ulp"] * r["elements"] for r in mine) / elements
    return dict(
        op=name, dtype=dtype, cases=len(mine), **{c: sum(not r[c] for r in mine) for c in CHECKS},
        max_ulp=round(max(r["max_ulp"] for r in mine), 4), mean_ulp=round(mean, 5),
        torch_max_ulp=round(max(r["torch_max_ulp"] for r in mine), 4),
        torch_mean_ulp=round(torch_mean, 5),
        worst_case_max=round(max(r["max_ulp"] / max(r["torch_max_ulp"], 0.5) for r in mine), 3),
    )  # fmt: skip


if __name__ == "__main__":
    main()
