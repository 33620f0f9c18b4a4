"""Time every plan of every layer shape, for the frozen tables. Run on the GPU, once per family.

    PYTHONPATH=kernels python kernels/bench/tune_matmul.py OUT.csv

Compiles in parallel processes first. The choice made from the CSV goes into
``nondet_kernels/tables``; nothing reads the CSV at run time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

import shapes
import timing
import torch
from nondet_kernels import matmul as mm
from nondet_kernels.matmul_plan import SLICE_UNIT, Plan
from nondet_kernels.support import cdiv

SKINNY = [
    (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (64, 256, 4, 4), (64, 64, 4, 8),
    (128, 128, 4, 3), (128, 128, 4, 4), (128, 128, 8, 4), (128, 64, 4, 6), (32, 128, 4, 6),
    (32, 256, 4, 4), (32, 256, 4, 6), (16, 256, 1, 6),
]  # fmt: skip
WHOLE = [
    (128, 256, 8, 3), (128, 128, 8, 3), (128, 128, 8, 4), (128, 128, 4, 3), (256, 128, 8, 3),
    (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (64, 64, 4, 5),
]  # fmt: skip
SPILL = [(128, 256, 8, 3), (128, 128, 8, 4), (128, 128, 4, 3)]
PARALLEL = [
    (128, 128, 8, 4), (64, 128, 4, 4), (64, 64, 4, 5), (128, 64, 4, 4), (128, 256, 8, 3),
]  # fmt: skip


def slice_of(k: int, s: int) -> tuple[int, int]:
    length = cdiv(cdiv(k, s), SLICE_UNIT) * SLICE_UNIT
    return cdiv(k, length), length


def counts(n: int, k: int) -> list[int]:
    wanted = [1] if n > 8192 else [1, 2] if k < 1024 else [1, 2, 4] if n > 1024 else [1, 2, 4, 8]
    return sorted({slice_of(k, s)[0] for s in wanted})


def plans(m: int, s: int) -> list[Plan]:
    if m <= 64:
        bm = 16 if m <= 16 else max(32, m)
        mode = "whole" if s == 1 else "parallel"
        return [Plan("tile", mode, bm, n, k, w, st, swap=True) for n, k, w, st in SKINNY]
    if s == 1:
        found = [Plan("stream", "whole", a, b, 64, w, st) for a, b, w, st in WHOLE]
        return [*found, Plan("stream", "whole", 128, 128, 64, 4, 3, special=True)]
    found = [Plan("stream", "parallel", a, b, 64, w, st) for a, b, w, st in PARALLEL]
    return found + [Plan("stream", "spill", a, b, 64, w, st) for a, b, w, st in SPILL]


def jobs() -> list[tuple[int, int, int, int, Plan]]:
    found = []
    for n, k in shapes.distinct():
        for m in (1, 16, 32, 64, 128, 512, 2048, 8192):
            if n > 40000 and m > 512:
                continue
            for s in counts(n, k):
                found += [(m, n, k, s, how) for how in plans(m, s) if useful(m, n, s, how)]
    return found


def useful(m: int, n: int, s: int, how: Plan) -> bool:
    """Drop plans that cannot win: huge waste, or far too many or too few programs."""
    if how.kernel == "tile":
        return not (n > 40000 and how.bn < 64)
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    if how.mode == "parallel":
        return tiles <= 264
    return not (how.mode == "spill" and tiles < 66) and not (tiles > 2000 and how.bn * how.bm < 16384)


def compile_some(work: list[tuple[int, int, int, int, Plan]]) -> None:
    for m, n, k, s, how in work:
        a = torch.zeros((m, k), dtype=torch.bfloat16, device="cuda")
        b = torch.zeros((n, k), dtype=torch.bfloat16, device="cuda")
        try:
            mm.bmm(a[None], b.t()[None], count=slice_of(k, s), how=how)
        except Exception as error:
            print("cannot", how, type(error).__name__, str(error)[:80], flush=True)


def compile_all(work: list[tuple[int, int, int, int, Plan]]) -> None:
    seen, unique = set(), []
    for m, n, k, s, how in work:
        key = (how, s == 1, k % how.bk == 0 and (s == 1 or slice_of(k, s)[1] % how.bk == 0))
        if how.kernel == "stream":
            key = (how, s == 1, True)
        if key not in seen:
            seen.add(key)
            unique.append((m, n, k, s, how))
    procs = min(16, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    pool = [context.Process(target=compile_some, args=(unique[i::procs],)) for i in range(procs)]
    for p in pool:
        p.start()
    for p in pool:
        p.join()
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
            mm._captured.clear()
            mm._kept.clear()
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
