"""Property cases on the GPU: does a row's result depend on anything but the row?

    PYTHONPATH=kernels python kernels/bench/check_bits.py OUT.csv [--draws 2000] [--seconds S]
        [--processes P] [--part I/N] [--join ROWS.jsonl ...]

A case draws a number of rows, data and a row, and compares the row's bits between: the row alone;
the row in its batch; the row elsewhere in the batch; the row among neighbours that are NaN,
infinite or huge; and the same values behind other strides. Thirty-two cases in a row share
operation, type, sizes and layouts, as each such choice is a kernel to compile. One in eight also
compares the error against float64 with that of torch's own operation.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import cases
import torch
from nondet_kernels import argmax
from operations import DTYPES, KINDS, Batched, Product, Row, data, equal, layouts, pick, ulps

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


DRAWS = 32
"""Cases that share what a kernel is compiled for: compiling takes most of the time."""


def case(name: str, seed: int) -> dict[str, Any]:
    shared = torch.Generator().manual_seed(seed // DRAWS)
    gen = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    dtype, layout = pick(DTYPES, shared), pick([0, 1, 2, 3], shared)
    kind = pick(KINDS, gen)
    kinds = {"matmul": Product, "addmm": Product, "linear": Product, "bmm": Batched}
    op = kinds.get(name, Row)("matmul" if name == "bmm" else name, shared, dtype, kind)
    width, ours = op.width, op.ours
    rows = pick(ROWS if width < 8192 else ROWS[:18], gen)
    x = data((rows, width), kind, dtype)
    if name == "argmax":
        x = (x * 2).round()  # Many ties.
    r = int(torch.randint(rows, (1,), generator=gen))
    alone = ours(x[r : r + 1].clone())[0]
    full = ours(x)
    found: dict[str, Any] = {"alone": equal(full[r], alone)}
    shift = int(torch.randint(rows, (1,), generator=gen))
    found["position"] = equal(ours(x.roll(shift, 0))[(r + shift) % rows], alone)
    bad = torch.full_like(x, pick([float("nan"), float("inf"), torch.finfo(dtype).max], gen))
    bad[r] = x[r]
    found["neighbours"] = equal(ours(bad)[r], alone)
    found["layout"] = equal(ours(layouts(x, layout))[r], alone)
    row = dict(op=name, seed=seed, dtype=str(dtype)[6:], data=kind, m=rows, d=width, **found)
    row["elements"] = 0
    if name == "argmax":
        row["layout"] &= equal(full, argmax.argmax_reference(x, -1))
    elif seed % 8 == 0:
        row.update(accuracy(op, x[:4], full[:4], x))
    return row


def accuracy(op: Any, few: torch.Tensor, mine: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    """Units of the last place of ours and of torch's first rows, against float64."""
    truth, floor = op.exact(few)
    ours, other = ulps(mine, truth, floor), ulps(op.torch(x)[: len(few)], truth, floor)
    if not ours.numel():
        return dict(elements=0)
    return dict(elements=ours.numel(), max_ulp=ours.max().item(), mean_ulp=ours.mean().item(),
                torch_max_ulp=other.max().item(), torch_mean_ulp=other.mean().item())  # fmt: skip


OPS = ["matmul", "addmm", "linear", "bmm", "rms_norm", "rms_norm_residual", "layer_norm", "softmax",
       "log_softmax", "mean", "sum", "argmax"]  # fmt: skip


CHECKS = ["alone", "position", "neighbours", "layout"]


def main() -> int:
    given = cases.arguments()
    groups = itertools.groupby(given.seeds, lambda seed: seed // DRAWS)
    jobs = [[(name, seed) for seed in seeds]
            for seeds in [list(group) for _, group in groups] for name in OPS]  # fmt: skip
    rows = cases.run(case, jobs, given)
    return int(cases.report(given.path, rows, OPS, CHECKS) > 0)


if __name__ == "__main__":
    sys.exit(main())
