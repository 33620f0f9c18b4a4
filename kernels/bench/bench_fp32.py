"""FP32 products and decode in tiles of few rows, and mixed products in more programs, on the GPU.

    PYTHONPATH=kernels python kernels/bench/bench_fp32.py OUT.csv [product] [decode] [mixed]

Without tensor cores a row of a tile costs as much when it is empty, so the fewest rows that keep
the weights moving win. Each variant is timed (CUDA graphs over operands that exceed the L2) and its
bits compared: ``equal`` with the first variant of that size, ``equal_alone`` (decode) the first
sequence with that sequence alone, its splits walked. What a call remembers is dropped between
variants; without that each would run the first one's kernel. Exit code 1 if any bits differ.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import timing
import torch
from bench_attention import HEADS
from nondet_kernels import attention, attention_plan, matmul, matmul_launch, matmul_plan, mixed
from nondet_kernels.matmul_plan import Plan
from nondet_kernels.mixed import MixedPlan
from nondet_kernels.support import Ready, cdiv, processors

DEVICE = "cuda"
Row = dict[str, Any]
NAMES = ["study", "model", "batch", "keys", "n", "k", "m", "plan", "bm", "bn", "stages", "warps",
         "swap", "unroll", "spread", "mode", "us", "torch_us", "equal", "equal_alone"]  # fmt: skip

PRODUCTS = [(1536, 1536), (8960, 1536), (1536, 8960), (4096, 4096), (151936, 1536)]
PRODUCT_ROWS = [1, 8, 16]
BLOCK_K = 16
"""k of a block of an FP32 product: part of the order of additions, so no variant."""
TILES = [(16, 32, 3, 4), (16, 32, 6, 4), (8, 32, 3, 4), (8, 32, 6, 4), (4, 32, 6, 4),
         (4, 64, 6, 4), (4, 32, 6, 2), (2, 32, 6, 2), (1, 32, 6, 2), (1, 32, 6, 1), (1, 64, 6, 4),
         (4, 16, 6, 2), (2, 16, 6, 1)]  # fmt: skip
"""(rows, columns, stages, warps) of a tile of an FP32 product."""

DECODE = [("8B", 1, 512), ("8B", 8, 512), ("8B", 64, 512), ("8B", 8, 4096),
          ("Qwen2.5-1.5B", 1, 128), ("Qwen2.5-1.5B", 1, 512), ("Qwen2.5-1.5B", 8, 512),
          ("Qwen2.5-1.5B", 64, 512), ("Qwen2.5-1.5B", 64, 4096), ("SmolLM2-135M", 1, 512),
          ("SmolLM2-135M", 64, 512), ("SmolLM2-135M", 64, 4096)]  # fmt: skip
"""(model, batch, keys) with one query a sequence."""
DECODE_TILES = [(rows, stages) for rows in (16, 8, 4) for stages in (1, 2)]

MIXED = [(8960, 1536), (4864, 896), (8192, 2048)]
MIXED_ROWS = [1, 8, 16, 32, 64, 128]
SPREADS = [1, 2, 4]
MIXED_PLANS = [MixedPlan(16, 64, 4, 5, True, 1), MixedPlan(16, 64, 4, 3, True, 1),
               MixedPlan(16, 32, 4, 5, True, 1), MixedPlan(16, 64, 4, 4, False, 1)]  # fmt: skip
"""Tried up to 16 rows, beside the plan of the table."""


@contextlib.contextmanager
def variant(module: Any, **values: Any) -> Iterator[None]:
    """``module`` with other values, and nothing remembered from before, inside or after."""
    with mock.patch.multiple(module, **values), mock.patch.object(attention, "_ready", Ready()):
        forget()
        try:
            yield
        finally:
            forget()


def forget() -> None:
    """Drop the launches that products keep; ``mixed`` shares the table of ``matmul``."""
    matmul._ready.clear()
    matmul_launch._fits.clear()


def timed(row: Row, calls: list[Callable[[], torch.Tensor]], first: torch.Tensor | None,
          replays: int) -> torch.Tensor | None:  # fmt: skip
    """Fill in ``us`` and ``equal``; the first call's result, or None where the variant fails."""
    try:
        out = calls[0]()
        row["us"] = round(timing.graph_us(calls, replays), 2)
    except Exception as error:
        print("failed", row, type(error).__name__, str(error)[:120], flush=True)
        return None
    row["equal"] = first is None or torch.equal(out, first)
    return out


def generic(tile: tuple[int, int, int, int]) -> Callable[..., Plan]:
    """What ``matmul_plan.generic`` would be if every FP32 product had this tile."""
    bm, bn, stages, warps = tile

    def chosen(m: int, n: int, bits: int, count: int, programs: int, tf32: bool = False) -> Plan:
        whole = (bm, bn, BLOCK_K, warps, stages)
        return matmul_plan.tiled(m, n, bits, count, programs, whole)

    return chosen


def products(sizes: list[tuple[int, int]], heights: list[int]) -> Iterator[Row]:
    """Every tile for each (N, K) and number of rows, beside torch's FP32 product."""
    for n, k in sizes:
        many = min(timing.copies(n * k * 4, 4), 24)
        weights = list(torch.randn((many, n, k), device=DEVICE))
        for m in heights:
            x, first = torch.randn((m, k), device=DEVICE), None
            usual = torch.nn.functional.linear
            torch_us = round(timing.graph_us([lambda w=w: usual(x, w) for w in weights], 3), 2)
            for tile in TILES:
                if tile[0] > max(4, m) and tile[0] != 16:
                    continue
                choose, (bm, bn, stages, warps) = generic(tile), tile
                count, programs = matmul_plan.slices(n, k)[0], processors(torch.device(DEVICE))
                row = dict(study="product", n=n, k=k, m=m, plan="own", bm=bm, bn=bn, stages=stages,
                           warps=warps, mode=choose(m, n, 32, count, programs).mode,
                           torch_us=torch_us)  # fmt: skip
                calls = [lambda w=w: matmul.linear(x, w) for w in weights]
                # ``plan`` looks the name up when it is called.
                with variant(matmul_plan, generic=choose):
                    out = timed(row, calls, first, 3)
                if out is not None:
                    first = out if first is None else first
                    yield row


def decode(cases: list[tuple[str, int, int]]) -> Iterator[Row]:
    """FP32 decode in tiles of few rows, in one stage and two."""
    for name, batch, keys in cases:
        h, hk, d = HEADS[name]
        size = 2 * batch * keys * hk * d * 4
        inputs = [tuple(torch.randn((batch, *s, d), device=DEVICE)
                        for s in ((h, 1), (hk, keys), (hk, keys)))
                  for _ in range(timing.copies(size, least=3, most=60))]  # fmt: skip
        alone = attention.attention(*(t[:1] for t in inputs[0]), parallel=False)
        first = None
        for rows, stages in DECODE_TILES:
            row: Row = dict(study="decode", model=name, batch=batch, keys=keys, plan="own",
                            bm=rows, stages=stages, warps=4)  # fmt: skip
            tile = (rows, 4, stages, "loads")
            with variant(attention_plan, shape_of=lambda *_, tile=tile: tile,
                         PARALLEL_SHAPE=(4, stages)):  # fmt: skip
                out = timed(row, [lambda t=t: attention.attention(*t) for t in inputs], first, 3)
            if out is not None:
                first = out if first is None else first
                yield {**row, "equal_alone": torch.equal(out[:1], alone)}


def mixtures(sizes: list[tuple[int, int]], heights: list[int]) -> Iterator[Row]:
    """FP32 by bf16 products with SPREAD 1, 2 and 4, beside torch's FP32 product."""
    for n, k in sizes:
        many = timing.copies(n * k * 2, 4)
        weights = list((torch.randn((many, n, k), device=DEVICE) / 32).bfloat16())[:64]
        for m in heights:
            x, first = torch.randn((m, k), device=DEVICE), None
            wide, usual = [w.float() for w in weights[:24]], torch.nn.functional.linear
            torch_us = round(timing.graph_us([lambda w=w: usual(x, w) for w in wide], 4), 2)
            for spread in SPREADS:
                for given in [None, *(MIXED_PLANS if m <= 16 else [])]:
                    how = given or mixed.mixed_plan(m, n, k)
                    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
                    few = tiles < spread * processors(torch.device(DEVICE))
                    shared = mixed.mixed_slices(n, k)[0] > 1 and few
                    row = dict(study="mixed", n=n, k=k, m=m, plan="own" if given else "table",
                               **how._asdict(), spread=spread, torch_us=torch_us,
                               mode="parallel" if shared else "walk")  # fmt: skip
                    calls = [lambda w=w, g=given: mixed.mixed_linear(x, w, how=g) for w in weights]
                    with variant(mixed, SPREAD=spread):
                        out = timed(row, calls, first, 4)
                    if out is not None:
                        first = out if first is None else first
                        yield row


@torch.no_grad()
def main() -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    wanted = sys.argv[2:] or ["product", "decode", "mixed"]
    studies = {"product": lambda: products(PRODUCTS, PRODUCT_ROWS),
               "decode": lambda: decode(DECODE),
               "mixed": lambda: mixtures(MIXED, MIXED_ROWS)}  # fmt: skip
    rows: list[Row] = []
    for name in wanted:
        for row in studies[name]():
            rows.append({column: row.get(column, "") for column in NAMES})
            print(*(v for v in rows[-1].values() if v != ""), flush=True)
        timing.write_csv(Path(sys.argv[1]), rows)
    differ = sum(row["equal"] is False or row["equal_alone"] is False for row in rows)
    print(len(rows), "variants timed,", differ, "with other bits", flush=True)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
