"""Attention against the better of torch SDPA's flash and cuDNN paths, on the GPU.

    PYTHONPATH=kernels python kernels/bench/bench_attention.py OUT.csv [seconds] [--tune]

Decode reads keys and values once (memory floor); prefill counts four operations per visible pair
and channel (tensor-core floor). ``--tune`` tries splits, blocks and tiles on a few sizes instead.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import timing
import torch
from nondet_kernels import attention as at
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS = {"8B": (32, 8, 128), "Qwen2.5-1.5B": (12, 2, 128), "SmolLM2-135M": (9, 3, 64)}
DECODE = [(1, 512), (1, 4096), (1, 32768), (8, 512), (8, 4096), (64, 512), (64, 4096)]
PREFILL = [(1, 512), (1, 2048), (1, 8192), (8, 512), (8, 2048)]
Case = tuple[str, int, int, int]


def cases() -> list[Case]:
    """(model, batch, queries, keys)."""
    found = [(name, b, 1, n) for name in HEADS for b, n in DECODE]
    return found + [(name, b, n, n) for name in HEADS for b, n in PREFILL]


def tensors(case: Case) -> list[tuple[torch.Tensor, ...]]:
    name, b, queries, keys = case
    h, hk, d = HEADS[name]
    many = timing.copies(b * keys * hk * d * 4, least=3, most=60) if queries == 1 else 3
    return [
        tuple(torch.randn((b, x, n, d), device="cuda").bfloat16()
              for x, n in ((h, queries), (hk, keys), (hk, keys)))
        for _ in range(many)
    ]  # fmt: skip


def torch_us(inputs: list[tuple[torch.Tensor, ...]], causal: bool) -> dict[str, float]:
    """Microseconds of each of torch's own paths; infinity where one refuses."""
    found = {}
    for name, backend in (
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
    ):
        try:
            with sdpa_kernel(backend):
                found[name] = timing.graph_us([
                    lambda q=q, k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=causal, enable_gqa=True)
                    for q, k, v in inputs])  # fmt: skip
        except Exception as error:
            print("torch", name, "refuses:", str(error)[:100], flush=True)
            found[name] = math.inf
    return found


def floor_us(case: Case) -> float:
    name, b, queries, keys = case
    h, hk, d = HEADS[name]
    moved = 2 * (2 * b * hk * keys * d + 2 * b * h * queries * d) / timing.PEAK_BYTES
    pairs = queries * keys if queries == 1 else queries * (keys + 1) / 2
    return max(moved, 4 * b * h * d * pairs / timing.PEAK_FLOPS) * 1e6


def compile_some(work: list[Case]) -> None:
    for case in work:
        q, k, v = tensors(case)[0]
        at.attention(q, k, v)


VARIANTS = [
    (split, block, shape)
    for split in (256, 512, 1024)
    for block, shape in [
        (64, (16, 4, 3)),
        (64, (16, 4, 2)),
        (64, (16, 2, 3)),
        (128, (16, 4, 2)),
        (128, (16, 8, 2)),
        (64, (16, 4, 4)),
        (64, (128, 8, 3)),
        (64, (128, 8, 2)),
        (64, (64, 4, 3)),
        (128, (128, 8, 2)),
        (32, (16, 4, 4)),
        (64, (128, 8, 4)),
    ]
]
"""(SPLIT, BLOCK, (rows of a tile, warps, stages))"""


def set_variant(variant: tuple[int, int, tuple[int, int, int]]) -> None:
    at.SPLIT, at.BLOCK = variant[0], variant[1]
    at.shape_of = lambda rows, width, size: variant[2]


def tune_jobs() -> list[tuple[Any, Case]]:
    sizes = [("8B", 1, 1, 4096), ("8B", 64, 1, 4096), ("8B", 1, 1, 512), ("8B", 1, 2048, 2048),
             ("8B", 1, 8192, 8192), ("SmolLM2-135M", 1, 1, 4096), ("SmolLM2-135M", 1, 2048, 2048),
             ("Qwen2.5-1.5B", 8, 1, 4096)]  # fmt: skip
    return [(v, c) for c in sizes for v in VARIANTS if (v[2][0] == 16) == (c[2] == 1)]


def compile_variants(work: list[tuple[Any, Case]]) -> None:
    for variant, case in work:
        set_variant(variant)
        try:
            q, k, v = tensors((case[0], 1, case[2], 512 if case[2] == 1 else case[3]))[0]
            for parallel in (False, True) if case[2] == 1 else (False,):
                at.attention(q, k, v, parallel=parallel)
        except Exception as error:
            print("cannot", variant, type(error).__name__, str(error)[:100], flush=True)


def tune(limit: float) -> list[dict[str, Any]]:
    start, rows, seen = time.time(), [], None
    timing.warm(
        compile_variants, list({(v, c[0], c[2] == 1): (v, c) for v, c in tune_jobs()}.values())
    )
    print(f"{time.time() - start:.0f} s to compile", flush=True)
    for variant, case in tune_jobs():
        if time.time() - start > limit:
            print("out of time", flush=True)
            break
        if seen != case:
            seen, inputs = case, tensors(case)
            best = torch_us(inputs, case[2] > 1)
        set_variant(variant)
        for parallel in (False, True) if case[2] == 1 else (False,):
            try:
                us = timing.graph_us(
                    [lambda t=t: at.attention(*t, parallel=parallel) for t in inputs]
                )
            except Exception as error:
                print("broken", variant, str(error)[:80], flush=True)
                continue
            rows.append(
                dict(
                    model=case[0],
                    batch=case[1],
                    queries=case[2],
                    keys=case[3],
                    variant=str(variant).replace(",", "/"),
                    parallel=parallel,
                    us=round(us, 2),
                    **best,
                    floor_us=round(floor_us(case), 2),
                )
            )
    return rows


def main() -> None:
    start = time.time()
    limit = float(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2][0] != "-" else 1e9
    if "--tune" in sys.argv:
        timing.write_csv(Path(sys.argv[1]), tune(limit))
        return
    timing.warm(compile_some, cases())
    if "--warm" in sys.argv:
        return
    rows = []
    for case in cases():
        if time.time() - start > limit:
            print("out of time", flush=True)
            break
        inputs = tensors(case)
        best = torch_us(inputs, case[2] > 1)
        us = timing.graph_us([lambda t=t: at.attention(*t) for t in inputs])
        ratio, floor = min(best.values()) / us, floor_us(case)
        rows.append(dict(phase="decode" if case[2] == 1 else "prefill", model=case[0],
                         batch=case[1], queries=case[2], keys=case[3], us=round(us, 2),
                         flash_us=round(best["flash"], 2), cudnn_us=round(best["cudnn"], 2),
                         ratio=round(ratio, 4), floor_us=round(floor, 2),
                         floor_percent=round(100 * floor / us, 1)))  # fmt: skip
    timing.write_csv(Path(sys.argv[1]), rows)
    for phase in ("decode", "prefill"):
        mine = [math.log(r["ratio"]) for r in rows if r["phase"] == phase]
        if mine:
            print(phase, f"geometric mean {math.exp(sum(mine) / len(mine)):.3f}:", *(
                f"{r['model']}/{r['batch']}x{r['keys']}: {r['us']} ({r['ratio']:.2f})"
                for r in rows if r["phase"] == phase), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
