"""Property cases on the GPU: does a row's result depend on anything but the row?

    PYTHONPATH=kernels python kernels/bench/check_bits.py OUT.csv [cases per operation] [seconds]

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timing
import torch
from nondet_kernels import argmax, matmul, norm, reduce, softmax

ROWS = [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257,
        300, 511, 512, 513, 777, 1024, 2048]  # fmt: skip
WIDTHS = [1, 2, 3, 7, 16, 31, 64, 100, 127, 128, 255, 256, 257, 576, 960, 1000, 1024, 1536, 2047, 2048,
          4096, 5000, 8960]  # fmt: skip
LONG = [*WIDTHS, 8192, 8193, 20000, 49152, 70001, 151936]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
INTS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
Op = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]


def pick(values: list[Any], gen: torch.Generator) -> Any:
    return values[int(torch.randint(len(values), (1,), generator=gen))]


def data(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Normal; wide exponents; cancelling pairs; or few channels a hundred times the others."""
    x = torch.randn(shape, device="cuda", dtype=torch.float32)
    if kind == "wide":
        x = x * torch.exp2(torch.rand(shape, device="cuda") * 16 - 8)
    elif kind == "cancelling":
        half = x.shape[-1] // 2
        x[..., half : 2 * half] = -x[..., :half] + x[..., half : 2 * half] * 2e-3
    elif kind == "outliers":
        x[..., :: max(1, x.shape[-1] // 5)] *= 100
    return x.to(dtype)


def layouts(x: torch.Tensor, kind: int) -> torch.Tensor:
    """The same values behind other strides or another alignment."""
    rows, width = x.shape
    if kind == 0:
        return x.t().contiguous().t()
    if kind == 1:
        wide = torch.full((rows, width + 3), 7.0, dtype=x.dtype, device=x.device)
        wide[:, 1 : width + 1] = x
        return wide[:, 1 : width + 1]
    if kind == 2:
        wide = torch.full((rows, 2 * width), 7.0, dtype=x.dtype, device=x.device)
        wide[:, ::2] = x
        return wide[:, ::2]
    tall = torch.full((3 * rows, width), 7.0, dtype=x.dtype, device=x.device)
    tall[::3] = x
    return tall[::3]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x if not x.is_floating_point() else x.contiguous().view(INTS[x.element_size()])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def ulps(y: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Error in units of the last place of the exact value (of the smallest normal, if smaller)."""
    info = torch.finfo(y.dtype)
    size = exact.abs().clamp_min(info.tiny)
    unit = torch.exp2(torch.floor(torch.log2(size))) * info.eps
    return ((y.double() - exact).abs() / unit).flatten()


def operation(name: str, gen: torch.Generator, dtype: torch.dtype,
              kind: str) -> tuple[int, Op, Callable[[torch.Tensor], torch.Tensor]]:  # fmt: skip
    """Width of a row, (ours, torch's) and the float64 reference, for one draw."""
    if name in ("matmul", "addmm", "linear"):
        big = dtype in (torch.bfloat16, torch.float16)
        k = pick(WIDTHS if big else WIDTHS[:17], gen)
        n = pick(WIDTHS if big else WIDTHS[:17], gen)
        w = data((n, k), kind, dtype) / max(k, 1) ** 0.5
        if name == "linear" and int(torch.randint(2, (1,), generator=gen)):
            w = layouts(w, pick([1, 2, 3], gen))
        if name == "matmul" and int(torch.randint(2, (1,), generator=gen)):
            w = w.t().contiguous().t()
        c = data((n,), "normal", dtype) if name != "matmul" else None
        alpha, beta = pick([(1, 1), (0.5, 2.0), (-1.5, 0.0)], gen) if name == "addmm" else (1, 1)
        wide = w.double()
        def exact(x: torch.Tensor) -> torch.Tensor:
            y = alpha * (x.double() @ wide.t())
            return y if c is None or beta == 0 else y + beta * c.double()
        if name == "linear":
            op = (lambda x: matmul.linear(x, w, c), lambda x: torch.nn.functional.linear(x, w, c))
        elif name == "addmm":
            op = (lambda x: matmul.matmul(x, w.t(), c, alpha, beta),
                  lambda x: torch.addmm(c, x, w.t(), alpha=alpha, beta=beta))  # fmt: skip
        else:
            op = (lambda x: matmul.matmul(x, w.t()), lambda x: torch.mm(x, w.t()))
        return k, op, exact
    d = pick(LONG if name in ("softmax", "log_softmax", "mean", "sum", "argmax") else WIDTHS, gen)
    f = torch.nn.functional
    if name == "rms_norm":
        g = data((d,), "normal", dtype)
        return d, (lambda x: norm.rms_norm(x, g, 1e-6), lambda x: f.rms_norm(x, (d,), g, 1e-6)), (
            lambda x: norm.rms_norm_reference(x.double(), g.double(), 1e-6))  # fmt: skip
    if name == "rms_norm_residual":
        g = data((d,), "normal", dtype)
        def ours(x: torch.Tensor) -> torch.Tensor:
            return norm.rms_norm(x, g, 1e-6, residual=x * 0.5)[0]
        return d, (ours, lambda x: f.rms_norm(x + x * 0.5, (d,), g, 1e-6)), (
            lambda x: norm.rms_norm_reference((x + x * 0.5).double(), g.double(), 1e-6))  # fmt: skip
    if name == "layer_norm":
        g, b = data((d,), "normal", dtype), data((d,), "normal", dtype)
        return d, (lambda x: norm.layer_norm(x, [d], g, b), lambda x: f.layer_norm(x, (d,), g, b)), (
            lambda x: norm.layer_norm_reference(x.double(), g.double(), b.double()))  # fmt: skip
    if name == "argmax":
        return d, (lambda x: argmax.argmax(x, -1), lambda x: x.argmax(-1)), lambda x: x.argmax(-1)
    table = {
        "softmax": (softmax.softmax, torch.softmax),
        "log_softmax": (softmax.log_softmax, torch.log_softmax),
        "mean": (reduce.mean, torch.mean),
        "sum": (reduce.sum, torch.sum),
    }
    mine, theirs = table[name]
    return d, (lambda x: mine(x, -1), lambda x: theirs(x, -1)), lambda x: theirs(x.double(), -1)


def case(name: str, seed: int) -> dict[str, Any]:
    gen = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    dtype = pick(DTYPES, gen)
    kind = pick(["normal", "wide", "cancelling", "outliers"], gen)
    width, (ours, theirs), exact = operation(name, gen, dtype, kind)
    rows = pick(ROWS if width * 2048 < 2**24 else ROWS[:18], gen)
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
        row["max_ulp"] = float(not torch.equal(full, exact(x)))
        return row
    truth = exact(x)
    mine, other = ulps(full, truth), ulps(theirs(x), truth)
    row.update(max_ulp=mine.max().item(), mean_ulp=mine.mean().item(), elements=mine.numel(),
               torch_max_ulp=other.max().item(), torch_mean_ulp=other.mean().item())  # fmt: skip
    return row


OPS = ["matmul", "addmm", "linear", "rms_norm", "rms_norm_residual", "layer_norm", "softmax",
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
                rows.append(dict(op=name, seed=seed, error=f"{type(error).__name__}: {error}"[:300]))
                if part == 0:
                    traceback.print_exc(limit=4)
    queue.put(rows)


def main() -> None:
    path, cases = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 1e9
    parts = min(14, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = [context.Process(target=work, args=(i, parts, cases, limit, queue)) for i in range(parts)]
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
