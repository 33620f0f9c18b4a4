"""FP32 by 16-bit products on the GPU: bits over plans and rows, error against float64.

    PYTHONPATH=kernels python kernels/bench/check_mixed.py OUT.csv [seconds]

Exit code 1 if a bit differs or the error is above 1.1 times that of torch's FP32 product. ``rms``
is the root mean square error of ours over that of torch's; ``fp32`` is that of the FP32 kernel.
``plans``: outputs of other plans that differ; ``rows``: of other numbers of rows, places and
neighbours (huge and NaN), of which ``compared`` were made.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import timing
import torch
from bench_mixed import PLANS, Job, compile_some, distinct
from nondet_kernels import matmul as mm
from nondet_kernels.mixed import MixedPlan, mixed_linear
from operations import data, same

SHAPES = [(1536, 1536), (1536, 8960), (272, 1041), (8960, 1536)]
KINDS = ["normal", "wide", "cancelling", "outliers"]
HALVES = (torch.bfloat16, torch.float16)
HEIGHTS = [1, 2, 7, 16, 17, 32, 33, 64, 65, 128]


def rms(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact).square().mean().sqrt())


def every(half: torch.dtype) -> list[MixedPlan]:
    """The plans to compare; fewer with fp16, whose kernels compile for twice as long."""
    found = list(dict.fromkeys(MixedPlan(*p) for group in PLANS.values() for p in group))
    return found if half == torch.bfloat16 else found[::4]


def jobs() -> list[Job]:
    """The kernels that the cases need."""
    found: list[Job] = []
    for (n, k), half in itertools.product(SHAPES, HALVES):
        found += [(how, half, 200, n, k, True) for how in every(half)]
        found += [(None, half, m, n, k, True) for m in (*HEIGHTS, 200)]
    return distinct(found)


def case(n: int, k: int, kind: str, half: torch.dtype) -> dict[str, Any]:
    """One weight: plans, rows and error."""
    torch.manual_seed(n + k)
    x = data((200, k), kind, torch.float32)
    w, c = data((n, k), "normal", half) / 32, data((n,), "normal", half)
    want = mixed_linear(x, w, c)
    compared = plans = rows = 0
    for how in every(half):
        try:
            got = mixed_linear(x, w, c, how=how)
        except Exception as error:
            print("cannot", tuple(how), half, type(error).__name__, str(error)[:100], flush=True)
            continue
        compared, plans = compared + 1, plans + (not same(got, want))
        if not same(got, want):
            print("DIFFERS", n, k, kind, half, tuple(how), int((got != want).sum()), flush=True)
    for m in HEIGHTS:
        for first in (0, 200 - m):
            compared += 1
            rows += not same(mixed_linear(x[first : first + m].clone(), w, c), want[first:][:m])
    for bad in (torch.finfo(torch.float32).max, float("nan"), float("inf")):
        other = torch.full_like(x, bad)
        other[77] = x[77]
        compared, rows = compared + 1, rows + (not same(mixed_linear(other, w, c)[77], want[77]))
    exact = x.double() @ w.double().t() + c.double()
    theirs = rms(torch.nn.functional.linear(x, w.float(), c.float()), exact)
    return dict(n=n, k=k, data=kind, weights=str(half)[6:], compared=compared, plans=plans,
                rows=rows, rms=round(rms(want, exact) / theirs, 4),
                fp32=round(rms(mm.linear(x, w.float(), c.float()), exact) / theirs, 4),
                relative=float(f"{rms(want, exact) / float(exact.square().mean().sqrt()):.3g}"),
                )  # fmt: skip


def infinite() -> int:
    """Outputs with other infinities or NaN than torch's FP32 product."""
    x, w = data((64, 1536), "normal", torch.float32), data((256, 1536), "normal", torch.bfloat16)
    x[::3, 5], x[1::5, 9], x[2::7, 1000] = float("inf"), float("-inf"), float("nan")
    w[::2, 5] = 0
    got, want = mixed_linear(x, w), torch.nn.functional.linear(x, w.float())
    return int(((got.isnan() != want.isnan()) | (got.isinf() & (got != want))).sum())


@torch.no_grad()
def main() -> int:
    start = time.time()
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
    torch.backends.cuda.matmul.allow_tf32 = False
    timing.warm(compile_some, jobs())
    print(f"compiled after {time.time() - start:.0f} s", flush=True)
    rows = []
    for kind, (n, k), half in itertools.product(KINDS, SHAPES, HALVES):
        if time.time() - start > limit:
            print(f"time is up before {kind} {n} x {k} {half}", flush=True)
            break
        rows.append(case(n, k, kind, half))
        print(rows[-1], flush=True)
        timing.write_csv(Path(sys.argv[1]), rows)
    bad = sum(r["plans"] + r["rows"] for r in rows) + infinite()
    worst = max(r["rms"] for r in rows)
    total = sum(r["compared"] for r in rows)
    print(f"mixed: {bad} of {total} comparisons differ, worst error {worst} of torch's FP32,",
          f"{time.time() - start:.0f} s", flush=True)  # fmt: skip
    return int(bad > 0 or worst > 1.1)


if __name__ == "__main__":
    sys.exit(main())
