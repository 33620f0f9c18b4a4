"""Every M in 1..2048 against M = 1 at the layer shapes, ours and torch.mm, on the GPU.

    PYTHONPATH=kernels python kernels/bench/check_rows.py OUT.csv [--seconds S] [--processes P]

Compares the first and the last row of the batch with the row alone, all bits. The data has outlier
channels and exponents spread over 2**16, because plain normal data hides differences.
"""

from __future__ import annotations

import sys
from typing import Any

import cases
import shapes
import timing
import torch
from bench_matmul import compile_some, jobs
from nondet_kernels import matmul as mm
from nondet_kernels.support import processors
from operations import data


def differing(function: Any, x: torch.Tensor) -> tuple[int, int]:
    """(number of M whose first or last row differs from the row alone, first such M or 0)."""
    most = len(x)
    first = function(x[:1])[0]
    alone = torch.empty((most, len(first)), dtype=x.dtype, device="cuda")
    for i in range(most):
        alone[i] = function(x[i : i + 1])[0]
    wrong = torch.zeros(most + 1, dtype=torch.bool, device="cuda")
    for m in range(1, most + 1):
        y = function(x[:m])
        wrong[m] = (y[0] != alone[0]).any() | (y[-1] != alone[m - 1]).any()
    return int(wrong.sum()), int(wrong.int().argmax())


def shape(n: int, k: int) -> dict[str, Any]:
    """Every M of one layer shape, ours and torch's."""
    torch.manual_seed(n + k)
    x = data((2048, k), "wide", torch.bfloat16)
    x[:, :: k // 5] *= 50
    w = (data((n, k), "normal", torch.bfloat16) / k**0.5).t()
    ours, at = differing(lambda t: mm.matmul(t, w), x)
    # The vocabulary products are long, and torch's own differences are known from the others.
    theirs, first = differing(lambda t: torch.mm(t, w), x) if n < 40000 else ("", "")
    row = dict(n=n, k=k, rows=2048, differ=ours, first_m=at, torch_differ=theirs,
               torch_first_m=first)  # fmt: skip
    print(row, flush=True)
    return row


def main() -> int:
    given = cases.arguments()
    timing.warm(compile_some, jobs(processors(torch.device("cuda", 0))))
    sizes = sorted(shapes.distinct(), key=lambda size: size[0] * size[1])
    rows = cases.run(shape, [[size] for size in sizes], given)
    print(*[row for row in rows if "error" in row], sep="\n")
    rows = [row for row in rows if "error" not in row]
    timing.write_csv(given.path, sorted(rows, key=lambda row: row["n"] * row["k"]))
    return int(len(rows) < len(sizes) or any(row["differ"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
