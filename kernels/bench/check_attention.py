"""Property cases for attention on the GPU: equal bits however the keys came in.

    PYTHONPATH=kernels python kernels/bench/check_attention.py OUT.csv [cases] [seconds] [processes]

A case draws heads, sizes, type and data, and compares with the bits of one plain prefill of each
sequence alone: the batch with left padding (pad keys NaN), a cache longer than its content (the
rest NaN), sequences end to end, a prefill in chunks, single decode steps, and split-parallel
against walked splits. Error against float64 is compared with torch's flash path (for FP32, its
math path).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import timing
import torch
from nondet_kernels import attention as at
from operations import data, pick, same, ulps
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS = [(4, 4), (4, 1), (12, 2), (9, 3), (6, 1), (2, 2)]
LENGTHS = [1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 600, 1023, 1025, 1500]
CHECKS = ["padded", "cache", "varlen", "chunks", "decode", "splits"]


def draw(seed: int) -> dict[str, Any]:
    gen = torch.Generator().manual_seed(seed)
    return dict(
        gen=gen, heads=pick(HEADS, gen), width=pick([64, 64, 128, 128, 80, 96, 256], gen),
        dtype=pick([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32], gen),
        kind=pick(["normal", "wide", "cancelling", "outliers"], gen),
        window=pick([None, None, None, 1, 63, 200, 700], gen),
    )  # fmt: skip


def case(seed: int) -> dict[str, Any]:
    c = draw(seed)
    gen, (h, hk), d, dtype, window = c["gen"], c["heads"], c["width"], c["dtype"], c["window"]
    if dtype == torch.float32 and d > 128:
        d = 128
    torch.manual_seed(seed)
    lengths = [pick(LENGTHS if dtype != torch.float32 else LENGTHS[:14], gen) for _ in range(3)]
    qs, ks, vs = ([data((n, x, d), c["kind"], dtype) for n in lengths] for x in (h, hk, hk))

    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        return at.attention(q, k, v, window=window, **more)[0].transpose(0, 1)

    plain = [one(*t, parallel=False) for t in zip(qs, ks, vs, strict=True)]
    found = dict.fromkeys(CHECKS, True)
    longest = max(lengths)
    left = [
        torch.full((3, x, longest, d), float("nan"), device="cuda", dtype=dtype)
        for x in (h, hk, hk)
    ]
    right = [t.clone() for t in left[1:]]
    for b, n in enumerate(lengths):
        for whole, part in zip(left, (qs, ks, vs), strict=True):
            whole[b, :, longest - n :] = part[b].transpose(0, 1)
        for whole, part in zip(right, (ks, vs), strict=True):
            whole[b, :, :n] = part[b].transpose(0, 1)
    pad = torch.tensor([longest - n for n in lengths], device="cuda")
    batch = at.attention(*left, window=window, key_start=pad)
    ends = torch.tensor(lengths, device="cuda")
    last = torch.stack([q[-1:].transpose(0, 1) for q in qs])
    step = at.attention(last, *right, window=window, key_end=ends)
    cu = torch.tensor(
        [0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda", dtype=torch.int32
    )
    flat = at.attention(torch.cat(qs), torch.cat(ks), torch.cat(vs), window=window, cu_seqlens_q=cu,
                        cu_seqlens_k=cu, max_q=longest, max_k=longest)  # fmt: skip
    for b, n in enumerate(lengths):
        q, k, v, o = qs[b], ks[b], vs[b], plain[b]
        found["padded"] &= same(batch[b, :, longest - n :].transpose(0, 1), o)
        found["padded"] &= not bool(batch[b, :, : longest - n].any())
        found["cache"] &= same(step[b, :, 0], o[-1])
        found["varlen"] &= same(flat[cu[b] : cu[b + 1]], o)
        size = pick([1, 16, 100, 300], gen) if n < 100 else pick([33, 100, 300, 512], gen)
        cut = int(torch.randint(n, (1,), generator=gen))
        for first in (cut // size * size, max(0, (n - 1) // size * size)):
            stop = min(n, first + size)
            found["chunks"] &= same(one(q[first:stop], k[:stop], v[:stop]), o[first:stop])
        found["decode"] &= same(one(q[cut : cut + 1], k[: cut + 1], v[: cut + 1]), o[cut : cut + 1])
        for parallel in (False, True):
            found["splits"] &= same(one(q[-1:], k, v, parallel=parallel), o[-1:])
    row = dict(
        op="attention",
        seed=seed,
        dtype=str(dtype)[6:],
        data=c["kind"],
        window=str(window),
        heads=f"{h}/{hk}",
        width=d,
        lengths="/".join(map(str, lengths)),
        **found,
    )
    return {**row, **accuracy(qs[0], ks[0], vs[0], plain[0], window)}


def accuracy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
             window: int | None) -> dict[str, float]:  # fmt: skip
    """ULP error of ours and of torch's path, at the scale of the values that are averaged."""
    if window is not None:
        return dict(elements=0)
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    exact = at.attention_reference(q.double(), k.double(), v.double())[0].transpose(0, 1)
    floor = at.attention_reference(q.double(), k.double(), v.double().abs())[0].transpose(0, 1)
    path = SDPBackend.MATH if q.dtype == torch.float32 else SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(path):
        other = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
    mine, theirs = ulps(o, exact, floor), ulps(other[0].transpose(0, 1), exact, floor)
    if not mine.numel():
        return dict(elements=0)
    return dict(elements=mine.numel(), max_ulp=mine.max().item(), mean_ulp=mine.mean().item(),
                torch_max_ulp=theirs.max().item(), torch_mean_ulp=theirs.mean().item())  # fmt: skip


def work(part: int, parts: int, cases: int, limit: float, queue: Any) -> None:
    start, rows = time.time(), []
    torch.backends.cuda.matmul.allow_tf32 = False
    for seed in range(part, cases, parts):
        if time.time() - start > limit:
            break
        try:
            rows.append(case(seed))
        except Exception as error:
            rows.append(dict(seed=seed, error=f"{type(error).__name__}: {error}"[:300]))
            if part == 0:
                traceback.print_exc(limit=4)
    queue.put(rows)


def main() -> None:
    path, cases = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 1e9
    parts = int(sys.argv[4]) if len(sys.argv) > 4 else min(14, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    pool = [
        context.Process(target=work, args=(i, parts, cases, limit, queue)) for i in range(parts)
    ]
    for p in pool:
        p.start()
    rows = [row for _ in pool for row in queue.get()]
    for p in pool:
        p.join()
    errors = [row for row in rows if "error" in row]
    rows = [row for row in rows if "error" not in row]
    print(*errors[:5], sep="\n")
    summary = []
    for dtype in ("bfloat16", "float16", "float32"):
        mine = [row for row in rows if row["dtype"] == dtype]
        judged = [row for row in mine if row["elements"]]
        total = sum(r["elements"] for r in judged) or 1
        line: dict[str, Any] = dict(op="attention", dtype=dtype, cases=len(mine))
        line.update({c: sum(not r[c] for r in mine) for c in CHECKS})
        for name in ("max_ulp", "torch_max_ulp"):
            line[name] = round(max([r[name] for r in judged], default=0.0), 4)
        for name in ("mean_ulp", "torch_mean_ulp"):
            line[name] = round(sum(r[name] * r["elements"] for r in judged) / total, 5)
        summary.append(line)
        print(line)
    for row in [r for r in rows if not all(r[c] for c in CHECKS)][:8]:
        print("DIFFERS", row)
    print(len(rows), "cases,", len(errors), "errors")
    timing.write_csv(path, summary)


if __name__ == "__main__":
    main()
