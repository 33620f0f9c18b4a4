"""Attention against the better of torch SDPA's flash and cuDNN paths, on the GPU.

    PYTHONPATH=kernels python kernels/bench/bench_attention.py OUT.csv [seconds] [--tune [--fp32]]

Decode reads keys and values once (memory floor); prefill counts four operations per visible pair
and channel (tensor-core floor). Where vLLM is importable its FlashAttention with one split is timed
too (column vllm_us). ``--tune`` tries splits, blocks and tiles on a few sizes instead, with --fp32
in that type.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import peers
import timing
import torch
from nondet_kernels import attention as at
from nondet_kernels import attention_plan as plan
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS = {"8B": (32, 8, 128), "Qwen2.5-1.5B": (12, 2, 128), "SmolLM2-135M": (9, 3, 64)}
DECODE = [(1, 512), (1, 4096), (1, 32768), (8, 512), (8, 4096), (64, 512), (64, 4096)]
PREFILL = [(1, 512), (1, 2048), (1, 8192), (8, 512), (8, 2048)]
WIDE = "--fp32" in sys.argv
KIND = torch.float32 if WIDE else torch.bfloat16
Case = tuple[str, int, int, int]


def cases() -> list[Case]:
    """(model, batch, queries, keys)."""
    found = [(name, b, 1, n) for name in HEADS for b, n in DECODE]
    return found + [(name, b, n, n) for name in HEADS for b, n in PREFILL]


def tensors(case: Case) -> list[tuple[torch.Tensor, ...]]:
    name, b, queries, keys = case
    h, hk, d = HEADS[name]
    size = 2 * b * keys * hk * d * KIND.itemsize
    many = timing.copies(size, least=3, most=60) if queries == 1 else 3
    return [
        tuple(torch.randn((b, x, n, d), device="cuda").to(KIND)
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
    moved = KIND.itemsize * (2 * b * hk * keys * d + 2 * b * h * queries * d) / timing.PEAK_BYTES
    pairs = queries * keys if queries == 1 else queries * (keys + 1) / 2
    return max(moved, 4 * b * h * d * pairs / timing.PEAK_FLOPS) * 1e6


def compile_some(work: list[Case]) -> None:
    for case in work:
        q, k, v = tensors(case)[0]
        at.attention(q, k, v)


ORDERS = [(128, 128)]
"""(SPLIT, BLOCK): what decides the bits."""
DECODE_SHAPES = [(4, 1, 4), (4, 2, 4), (4, 2, 2), (4, 3, 4)]
"""(warps, stages, parts a processor) of split-parallel decode."""
FP32_DECODE_SHAPES = [(4, 1, 4), (8, 1, 4), (8, 2, 4), (4, 2, 4), (8, 1, 2)]
FP32_PREFILL_SHAPES = [(32, 8, 1, "loads"), (32, 4, 1, "loads"), (64, 8, 1, "loads")]
MERGES = [16, 1000]
"""Splits from which a kernel of its own adds them up."""
PREFILL_SHAPES = [(128, 8, 3, "copies"), (64, 4, 2, "copies"), (64, 4, 2, "loads"),
                  (128, 4, 2, "warps"), (128, 4, 3, "warps")]  # fmt: skip
"""(rows of a tile, warps, stages, what brings the keys)."""
TUNED = [
    ("8B", 1, 1, 512), ("8B", 1, 2048, 2048), ("8B", 1, 1, 4096), ("SmolLM2-135M", 1, 2048, 2048),
    ("8B", 64, 1, 512), ("8B", 8, 512, 512), ("Qwen2.5-1.5B", 64, 1, 4096), ("8B", 8, 1, 4096),
    ("SmolLM2-135M", 64, 1, 4096), ("8B", 1, 8192, 8192), ("SmolLM2-135M", 1, 1, 4096),
    ("SmolLM2-135M", 8, 2048, 2048), ("Qwen2.5-1.5B", 1, 1, 32768), ("Qwen2.5-1.5B", 8, 1, 512),
    ("Qwen2.5-1.5B", 1, 2048, 2048),
]  # fmt: skip
Variant = tuple[tuple[int, int], Any, bool]


def variants(case: Case) -> list[Variant]:
    """((SPLIT, BLOCK), shape, split-parallel) to try for one size."""
    if case[2] > 1:
        shapes = FP32_PREFILL_SHAPES if WIDE else PREFILL_SHAPES
        return [(order, shape, False) for order in ORDERS for shape in shapes]
    merges = MERGES if case[3] > 2048 else MERGES[:1]
    shared = [(order, (*shape, n), True) for order in ORDERS
              for shape in (FP32_DECODE_SHAPES if WIDE else DECODE_SHAPES)
              for n in merges]  # fmt: skip
    walked = [(4, 1, 4, 16), (8, 1, 4, 16)] if WIDE else [(4, n, 4, 16) for n in (2, 3, 4)]
    return shared + [(order, shape, False) for order in ORDERS for shape in walked]


def set_variant(variant: Variant, case: Case) -> None:
    (plan.SPLIT, plan.BLOCK), shape, _ = variant
    if case[2] > 1:
        plan.shape_of = lambda *_: shape
    else:
        plan.shape_of = lambda *_: (16, shape[0], shape[1], "loads")
        plan.PARALLEL_SHAPE = shape[:2]
        plan.PARTS, plan.MERGE = shape[2:]


def compile_variants(work: list[tuple[Variant, Case]]) -> None:
    for variant, case in work:
        set_variant(variant, case)
        long = 32768 if variant[2] else 512
        small = (case[0], 1, case[2] if case[2] == 1 else 512, long)
        try:
            at.attention(*tensors(small)[0], parallel=variant[2])
        except Exception as error:
            print("cannot", variant, type(error).__name__, str(error)[:100], flush=True)


def tune(limit: float, path: Path) -> list[dict[str, Any]]:
    """Every variant of the sizes in TUNED; ``bits`` says whether all of one order agree."""
    start, rows = time.time(), []
    # FP32 has no tensor cores: its long prefills would take the time of all the others.
    tuned = [c for c in TUNED if not WIDE or c[1] * c[2] <= 2048]
    unique = {(v, c[0], c[2] == 1): (v, c) for c in tuned for v in variants(c)}
    timing.warm(compile_variants, list(unique.values()))
    print(f"{time.time() - start:.0f} s to compile", flush=True)
    if "--warm" in sys.argv:
        return []
    for case in tuned:
        torch.manual_seed(0)
        inputs = tensors(case)
        best = torch_us(inputs, case[2] > 1)
        seen: dict[tuple[int, int], torch.Tensor] = {}
        for variant in variants(case):
            if time.time() - start > limit:
                break
            set_variant(variant, case)
            try:
                out = at.attention(*inputs[0], parallel=variant[2])
                us = timing.graph_us(
                    [lambda t=t, p=variant[2]: at.attention(*t, parallel=p) for t in inputs], 3
                )
            except Exception as error:
                print("broken", case, variant, str(error)[:80], flush=True)
                continue
            same = torch.equal(seen.setdefault(variant[0], out), out)
            rows.append(
                dict(
                    model=case[0],
                    batch=case[1],
                    queries=case[2],
                    keys=case[3],
                    split=variant[0][0],
                    block=variant[0][1],
                    shape="/".join(map(str, variant[1])),
                    parallel=variant[2],
                    us=round(us, 2),
                    bits=same,
                    **{name: round(value, 2) for name, value in best.items()},
                    floor_us=round(floor_us(case), 2),
                )
            )
        if rows:
            timing.write_csv(path, rows)
    return rows


def main() -> None:
    start = time.time()
    limit = float(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2][0] != "-" else 1e9
    if "--tune" in sys.argv:
        tune(limit, Path(sys.argv[1]))
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
                         vllm_us=peers.timed([peers.attention(*t) for t in inputs]),
                         vllm=peers.version(), ratio=round(ratio, 4), floor_us=round(floor, 2),
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
