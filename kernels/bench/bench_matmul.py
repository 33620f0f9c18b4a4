"""matmul against torch.mm at the layer shapes of the four models, on the GPU.

    PYTHONPATH=kernels python kernels/bench/bench_matmul.py OUT.csv [seconds]

Median microseconds from CUDA graphs over rotating weights that exceed the L2, both in the same run.
The floor is the larger of bytes over copy bandwidth and operations over a large product's rate.
Where vLLM is importable its own batch-invariant product is timed too (column vllm_us).
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import peers
import shapes
import timing
import torch
from nondet_kernels import matmul as mm
from nondet_kernels.matmul_plan import plan, slices
from nondet_kernels.support import processors

DECODE = [1, 2, 4, 8, 16, 32, 64]
PREFILL = [128, 256, 512, 1024, 2048, 4096, 8192]


def compile_some(work: list[tuple[int, int, int]]) -> None:
    for m, n, k in work:
        x = torch.zeros((m, k), dtype=torch.bfloat16, device="cuda")
        mm.matmul(x, torch.zeros((n, k), dtype=torch.bfloat16, device="cuda").t())


def jobs(programs: int) -> list[tuple[int, int, int]]:
    """One size for each kernel that the run will need."""
    unique = {}
    for n, k in shapes.distinct():
        for m in DECODE + PREFILL:
            how = plan(m, n, k, 16, True, programs)
            even = k % how.bk == 0 and slices(n, k)[1] % how.bk == 0
            if n < 40000 or m < 4096:
                unique.setdefault((how, even), (m, n, k))
    return list(unique.values())


def measure(m: int, w: torch.Tensor, other: Any) -> dict[str, Any]:
    n, k = w.shape[1:]
    x = torch.randn((m, k), device="cuda").bfloat16()
    o = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    use = list(w)[:100] if m <= 512 else list(w)[:4]
    repeat = 5 if m <= 1024 else 3
    # Alternate, so that a drift of the clocks meets both.
    pairs = []
    for _ in range(2):
        ours = timing.graph_us([lambda v=v: mm.matmul(x, v.t(), out=o) for v in use], repeat)
        theirs = timing.graph_us([lambda v=v: torch.mm(x, v.t(), out=o) for v in use], repeat)
        pairs.append((ours, theirs))
    us, torch_us = (sum(p) / 2 for p in zip(*pairs, strict=True))
    moved = 2 * (n * k + m * k + m * n) / timing.PEAK_BYTES * 1e6
    work = 2 * m * n * k / timing.PEAK_FLOPS * 1e6
    vllm_us = peers.timed([other and (lambda v=v: other(x, v.t())) for v in use], repeat)
    return dict(us=round(us, 3), torch_us=round(torch_us, 3), ratio=round(torch_us / us, 4),
                vllm_us=vllm_us, vllm=peers.version(), floor_us=round(max(moved, work), 3),
                limit="memory" if moved > work else "tensor cores",
                floor_percent=round(100 * max(moved, work) / us, 1))  # fmt: skip


def host_us() -> dict[str, float]:
    """Microseconds of host time a call, ours beside torch's: what an eager decode step pays."""
    from nondet_kernels import attention, norm, reduce

    x, w, g = (torch.randn(s, device="cuda").bfloat16() for s in ((1, 1, 576), (576, 576), (576,)))
    q, k = (torch.randn((1, h, n, 64), device="cuda").bfloat16() for h, n in ((9, 1), (3, 100)))
    f, found = torch.nn.functional, {}
    for name, call in {
        "linear": lambda: mm.linear(x, w),
        "torch linear": lambda: f.linear(x, w),
        "rms_norm": lambda: norm.rms_norm(x, g, 1e-6),
        "torch rms_norm": lambda: f.rms_norm(x, (576,), g, 1e-6),
        "mean": lambda: reduce.mean(x, -1, True),
        "torch mean": lambda: torch.mean(x, -1, True),
        "attention": lambda: attention.attention(q, k, k),
        "torch sdpa": lambda: f.scaled_dot_product_attention(q, k, k, enable_gqa=True),
    }.items():
        for calls in (50, 500):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            found[name] = round((time.perf_counter() - begin) / calls * 1e6, 1)
    return found


@torch.no_grad()
def main() -> None:
    start = time.time()
    limit = float(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2][0] != "-" else 1e9
    timing.warm(compile_some, jobs(processors(torch.device("cuda", 0))))
    if "--warm" in sys.argv:
        return
    print(f"{time.time() - start:.0f} s to compile", flush=True)
    other, found = peers.matmul(), {}
    for n, k in shapes.distinct():
        w = torch.randn((timing.copies(n * k * 2), n, k), device="cuda").bfloat16() / 32
        for m in DECODE + PREFILL:
            if time.time() - start < limit:
                found[n, k, m] = measure(m, w, other)
        del w
    rows = []
    for kind, models in (("fused", shapes.FUSED), ("split", shapes.SPLIT)):
        for model, layers in models.items():
            for layer, (n, k) in layers.items():
                rows += [
                    dict(
                        model=model,
                        layer=layer,
                        layout=kind,
                        n=n,
                        k=k,
                        m=m,
                        slices=slices(n, k)[0],
                        **found[n, k, m],
                    )
                    for m in DECODE + PREFILL
                    if (n, k, m) in found
                ]
    timing.write_csv(Path(sys.argv[1]), rows)
    for name, ms in [
        ("decode", DECODE),
        ("prefill", PREFILL),
        *((str(m), [m]) for m in DECODE + PREFILL),
    ]:
        logs = [math.log(r["ratio"]) for r in rows if r["layout"] == "fused" and r["m"] in ms]
        if logs:
            print(
                f"matmul M {name}: mean {math.exp(sum(logs) / len(logs)):.3f} of torch.mm, "
                f"{len(logs)} sizes",
                flush=True,
            )
    print("host us a call:", host_us(), f"{time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
