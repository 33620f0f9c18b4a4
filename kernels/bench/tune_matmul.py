"""Time every plan of every layer shape, for the frozen tables. Run on the GPU, once per family.

    PYTHONPATH=kernels python kernels/bench/tune_matmul.py OUT.csv

Compiles in parallel processes first. The choice made from the CSV goes into
``nondet_kernels/tables``; nothing reads the CSV at run time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import shapes
import timing
import torch
from nondet_kernels import matmul as mm
from nondet_kernels import matmul_launch as ml
from nondet_kernels.matmul_plan import SLICE_UNIT, Plan
from nondet_kernels.support import cdiv

SWAP = {
    16: [(64, 64, 4, 8), (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (64, 256, 4, 4),
         (128, 128, 4, 3), (128, 128, 8, 4), (128, 64, 4, 6), (32, 128, 4, 6), (32, 256, 4, 4)],
    32: [(64, 64, 4, 8), (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (128, 128, 4, 4),
         (128, 64, 4, 6), (32, 128, 4, 4), (32, 256, 4, 3)],
    64: [(64, 64, 4, 8), (64, 128, 4, 4), (64, 128, 4, 5), (64, 256, 4, 3), (128, 128, 8, 4),
         (128, 64, 4, 6), (128, 128, 4, 3)],
    128: [(64, 128, 4, 4), (64, 64, 4, 6), (128, 128, 8, 3), (128, 64, 8, 4), (128, 64, 4, 4)],
    256: [(64, 64, 4, 4), (128, 64, 8, 4)],
}  # fmt: skip
"""Tile kernel, weights on the left: rows of the batch -> (columns, BLOCK_K, warps, stages)."""
STREAM = [
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3),
    (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 5), (64, 64, 128, 4, 4),
    (64, 64, 128, 4, 6), (128, 64, 128, 4, 4), (128, 64, 128, 8, 4), (64, 128, 128, 4, 4),
    (128, 128, 128, 8, 3), (64, 32, 128, 4, 6),
]  # fmt: skip
SHARED = [
    (64, 128, 64, 4, 3, 2),
    (64, 128, 64, 4, 4, 2),
    (128, 64, 64, 4, 3, 2),
    (64, 64, 64, 4, 4, 3),
    (64, 64, 128, 4, 3, 2),
    (128, 128, 64, 8, 2, 2),
    (128, 128, 64, 4, 2, 2),
    (64, 256, 64, 4, 2, 2),
]
"""Stream kernel with several programs a multiprocessor, which evens out uneven waves."""


def slice_of(k: int, s: int) -> tuple[int, int]:
    length = cdiv(cdiv(k, s), SLICE_UNIT) * SLICE_UNIT
    return cdiv(k, length), length


def counts(n: int, k: int) -> list[int]:
    wanted = [2] if (n, k) == (1536, 8960) else [1]
    return sorted({slice_of(k, s)[0] for s in wanted})


def plans(m: int, s: int) -> list[Plan]:
    mode = "whole" if s == 1 else "parallel"
    found = []
    for bm, tiles in SWAP.items():
        if bm == 16 or bm // 2 < m <= 8 * bm:
            found += [Plan("tile", mode, bm, n, k, w, st, swap=True) for n, k, w, st in tiles]
    if m > 64:
        found += [Plan("stream", mode, *tile[:5], False, tile[5]) for tile in SHARED]
    if SHARED_ONLY:
        return found[-len(SHARED) :]
    if m > 32:
        found += [Plan("stream", mode, *tile) for tile in STREAM if m > 64 or tile[0] == 64]
    if m > 256 and s > 1:
        found += [Plan("stream", "spill", *tile) for tile in STREAM[:3]]
    return found


def jobs() -> list[tuple[int, int, int, int, Plan]]:
    found = []
    for n, k in shapes.distinct():
        for m in MS:
            if n > 40000 and m > 512:
                continue
            for s in counts(n, k):
                found += [(m, n, k, s, how) for how in plans(m, s) if useful(m, n, s, how)]
    return found


SHARED_ONLY = "--shared" in sys.argv
MS = (
    (128, 256, 512, 1024, 2048) if SHARED_ONLY else (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
)


def useful(m: int, n: int, s: int, how: Plan) -> bool:
    """Drop plans that cannot win: huge waste, or far too many or too few programs."""
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    if how.kernel == "tile":
        if n > 40000 and (how.bn < 64 or (m > 16 and how.bm == 16)):
            return False
        return m <= 512 and (tiles <= 528 or m <= how.bm)
    if how.mode == "parallel":
        return tiles <= 264
    if how.mode == "spill" and tiles < 66:
        return False
    return tiles <= 1056 or how.bn * how.bm >= 16384


def compile_some(work: list[tuple[int, int, int, int, Plan]]) -> None:
    for m, n, k, s, how in work:
        a = torch.zeros((m, k), dtype=torch.bfloat16, device="cuda")
        b = torch.zeros((n, k), dtype=torch.bfloat16, device="cuda")
        try:
            mm.bmm(a[None], b.t()[None], count=slice_of(k, s), how=how)
        except Exception as error:
            print("cannot", how, type(error).__name__, str(error)[:80], flush=True)


def compile_all(work: list[tuple[int, int, int, int, Plan]]) -> None:
    """One job for each kernel that will be needed."""
    unique = {}
    for m, n, k, s, how in work:
        even = k % how.bk == 0 and (s == 1 or slice_of(k, s)[1] % how.bk == 0)
        unique.setdefault((how, s == 1, even or how.kernel == "stream"), (m, n, k, s, how))
    timing.warm(compile_some, list(unique.values()))
    print(f"compiled {len(unique)}", flush=True)


def main() -> None:
    start = time.time()
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
    work = jobs()
    print(len(work), "timings", flush=True)
    compile_all(work)
    print(f"{time.time() - start:.0f} s to compile", flush=True)
    rows, operands, broken = [], {}, set()
    for m, n, k, s, how in work:
        if time.time() - start > limit:
            print("out of time", flush=True)
            break
        if (n, k) not in operands:
            operands.clear()
            many = timing.copies(n * k * 2)
            operands[n, k] = torch.randn((many, n, k), device="cuda").bfloat16() / 32
            reference = {}
        w = operands[n, k]
        x = torch.randn((m, k), device="cuda").bfloat16()
        o = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
        use = list(w) if m <= 512 else list(w)[:4]
        if m not in reference:
            us = timing.graph_us([lambda v=v: torch.mm(x, v.t(), out=o) for v in use], 5)
            reference[m] = us
            rows.append(dict(m=m, n=n, k=k, s=0, plan="torch.mm", us=us, torch_us=us))
        if (how, s == 1) in broken:
            continue
        count = slice_of(k, s)
        try:
            ml._captured.clear()
            ml._kept.clear()
            us = timing.graph_us(
                [lambda v=v: mm.bmm(x[None], v.t()[None], out=o[None], count=count, how=how)
                 for v in use], 5)  # fmt: skip
        except Exception as error:
            broken.add((how, s == 1))
            print("broken", how, type(error).__name__, str(error)[:100], flush=True)
            continue
        name = "/".join(str(f) for f in how)
        rows.append(dict(m=m, n=n, k=k, s=s, plan=name, us=us, torch_us=reference[m]))
    timing.write_csv(Path(sys.argv[1]), rows)
    print(f"{time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
