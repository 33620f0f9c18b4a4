"""All plans of one product give the same bits: run on the GPU; exit code 1 if any differs.

    PYTHONPATH=kernels python kernels/bench/check_plans.py

The number of slices is held; kernel, mode, tile, BLOCK_K, warps, stages, the side of the weights and
the copy engine vary. Rows 0 to 15 of a taller product are compared as well.
"""

from __future__ import annotations

import itertools
import sys

import torch
import tune_matmul as tune
from check_bits import data
from nondet_kernels import matmul as mm
from nondet_kernels.matmul_plan import Plan


def candidates(dtype: torch.dtype, s: int) -> list[Plan]:
    """Plans that differ in everything but the number of slices."""
    modes = ["whole"] if s == 1 else ["parallel", "walk"]
    if dtype == torch.float32:
        tiles = [(16, 32, 32, 4, 3), (64, 64, 16, 8, 3), (32, 32, 64, 4, 2), (64, 32, 32, 4, 1)]
        return [Plan("tile", m, *t, swap) for t in tiles for m in modes for swap in (False, True)]
    tiles = [(16, 64, 128, 4, 4), (16, 32, 64, 4, 3), (16, 16, 32, 2, 3), (32, 128, 64, 8, 3),
             (64, 64, 64, 4, 4), (64, 128, 128, 4, 3), (128, 64, 16, 4, 3)]  # fmt: skip
    found = [Plan("tile", m, *t, swap) for t in tiles for m in modes for swap in (False, True)]
    return found + tune.plans(128, s)


def main() -> int:
    bad = 0
    for dtype, tf32 in ((torch.bfloat16, False), (torch.float16, False), (torch.float32, False),
                        (torch.float32, True)):  # fmt: skip
        for (n, k), kind, s in itertools.product(
            [(272, 1040), (528, 4096)], ["normal", "wide"], [1, 2, 4]
        ):
            torch.manual_seed(n + s)
            x, w = data((150, k), kind, dtype), data((n, k), kind, dtype)
            count, base = tune.slice_of(k, s), None
            for how in candidates(dtype, count[0]):
                try:
                    y = mm.bmm(x[None], w.t()[None], allow_tf32=tf32, count=count, how=how)[0]
                    top = mm.bmm(x[None, :3], w.t()[None], allow_tf32=tf32, count=count, how=how)[0]
                except Exception as error:
                    print("cannot", dtype, how, type(error).__name__, str(error)[:150], flush=True)
                    continue
                base = y if base is None else base
                differ = int((y.float() != base.float()).sum()), int((top.float() != y[:3].float()).sum())
                if any(differ):
                    bad += 1
                    print("DIFFERS", dtype, tf32, n, k, kind, count, how, differ, flush=True)
        print(dtype, "tf32" if tf32 else "", "done; differing so far:", bad, flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
