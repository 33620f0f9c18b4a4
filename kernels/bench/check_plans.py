"""All plans of one product give the same bits: run on the GPU; exit code 1 if any differs.

    PYTHONPATH=kernels python kernels/bench/check_plans.py

The number of slices is held; kernel, mode, tile, BLOCK_K, warps, stages, the side of the weights
and the copy engine vary. Rows 0 to 15 of a taller product are compared as well.
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from typing import Any

import torch
import tune_matmul as tune
from nondet_kernels import matmul as mm
from nondet_kernels.matmul_plan import Plan
from operations import data


def candidates(dtype: torch.dtype, s: int) -> list[Plan]:
    """Plans that differ in everything but the number of slices."""
    modes = ["whole"] if s == 1 else ["parallel", "walk"]
    if dtype == torch.float32:
        tiles = [(16, 32, 16, 4, 3), (64, 64, 16, 8, 2), (32, 32, 16, 4, 2), (64, 32, 16, 4, 1)]
        return [Plan("tile", m, *t, swap) for t in tiles for m in modes for swap in (False, True)]
    tiles = [(16, 64, 128, 4, 4), (16, 32, 64, 4, 3), (16, 16, 32, 2, 3), (32, 128, 64, 8, 3),
             (64, 64, 64, 4, 4), (64, 128, 128, 4, 3), (128, 64, 16, 4, 3)]  # fmt: skip
    found = [Plan("tile", m, *t, swap) for t in tiles for m in modes for swap in (False, True)]
    return found + tune.plans(128, s)


def compare(dtype: torch.dtype, tf32: bool, s: int, queue: Any) -> None:
    """Run every candidate for one type and number of slices; report what differs."""
    bad = tried = 0
    for (n, k), kind in itertools.product([(272, 1040), (528, 4096)], ["normal", "wide"]):
        torch.manual_seed(n + s)
        x, w = data((150, k), kind, dtype), data((n, k), kind, dtype)
        count, base = tune.slice_of(k, s), None
        for how in candidates(dtype, count[0]):
            try:
                y, top = (
                    mm.bmm(part[None], w.t()[None], allow_tf32=tf32, count=count, how=how)[0]
                    for part in (x, x[:3])
                )
            except Exception as error:
                print("cannot", dtype, how, type(error).__name__, str(error)[:150], flush=True)
                continue
            tried += 1
            base = y if base is None else base
            differ = int((y != base).sum()), int((top != y[:3]).sum())
            if any(differ):
                bad += 1
                print("DIFFERS", dtype, tf32, n, k, kind, count, tuple(how), differ, flush=True)
    queue.put((str(dtype), tf32, s, tried, bad))


def main() -> int:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    types = [(torch.bfloat16, False), (torch.float16, False), (torch.float32, False),
             (torch.float32, True)]  # fmt: skip
    pool = [context.Process(target=compare, args=(*t, s, queue)) for t in types for s in (1, 2, 4)]
    for p in pool:
        p.start()
    found = [queue.get() for _ in pool]
    for line in sorted(found):
        print("plans", *line, flush=True)
    for p in pool:
        p.join()
    return int(any(line[-1] for line in found))


if __name__ == "__main__":
    sys.exit(main())
