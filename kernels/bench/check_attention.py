"""Property cases for attention on the GPU: equal bits however the keys came in.

    PYTHONPATH=kernels python kernels/bench/check_attention.py OUT.csv [--draws 2000] [--seconds S]
        [--processes P] [--part I/N] [--join ROWS.jsonl ...]

A case draws heads, sizes, type and data, and compares with the bits of one plain prefill of each
sequence alone: the batch with left padding (pad keys NaN), a cache longer than its content (the
rest NaN), sequences end to end, a prefill in chunks, single decode steps, and split-parallel
against walked splits. Error against float64 is compared with torch's flash path (for FP32, its
math path).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import cases
import torch
from nondet_kernels import attention as at
from nondet_kernels import attention_plan as plan
from operations import KINDS, data, equal, pick, ulps
from torch.nn.attention import SDPBackend, sdpa_kernel

LENGTHS = [1, 2, 7, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 600, 1023, 1025, 1500]
CHECKS = ["padded", "cache", "varlen", "chunks", "decode", "splits", "engines"]


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SETTINGS = [
    ((4, 1), 128, BF16, None), ((12, 2), 128, BF16, None), ((9, 3), 64, BF16, None),
    ((4, 4), 64, BF16, 200), ((6, 1), 128, BF16, 63), ((4, 1), 256, BF16, None),
    ((12, 2), 96, BF16, None), ((9, 3), 80, FP16, None), ((4, 1), 128, FP16, None),
    ((2, 2), 64, FP16, 700), ((4, 4), 64, FP32, None), ((12, 2), 128, FP32, None),
    ((6, 1), 64, FP32, 1), ((2, 2), 256, FP16, 63), ((14, 2), 64, BF16, None),
    ((16, 1), 128, BF16, 1),
]  # fmt: skip
"""((heads, key heads), head size, type, window); one case in ``len(SETTINGS)`` has each."""


def case(seed: int) -> dict[str, Any]:
    gen = torch.Generator().manual_seed(seed)
    (h, hk), d, dtype, window = SETTINGS[seed % len(SETTINGS)]
    kind = pick(KINDS, gen)
    torch.manual_seed(seed)
    lengths = [pick(LENGTHS if dtype != torch.float32 else LENGTHS[:14], gen) for _ in range(3)]
    qs, ks, vs = ([data((n, x, d), kind, dtype) for n in lengths] for x in (h, hk, hk))
    if kind == "activations":
        # Hidden states are no queries: bring them to the size that these have.
        qs, ks = ([_unit(t) for t in part] for part in (qs, ks))

    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> torch.Tensor:
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        return at.attention(q, k, v, window=window, **more)[0].transpose(0, 1)

    plain = [one(*t, parallel=False) for t in zip(qs, ks, vs, strict=True)]
    found: dict[str, Any] = dict.fromkeys(CHECKS, True)
    found["engines"] = engines(one, qs[0], ks[0], vs[0], plain[0])
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
    offsets = [0, *itertools.accumulate(lengths)]
    cu = torch.tensor(offsets, device="cuda", dtype=torch.int32)
    flat = at.attention(torch.cat(qs), torch.cat(ks), torch.cat(vs), window=window, cu_seqlens_q=cu,
                        cu_seqlens_k=cu, max_q=longest, max_k=longest)  # fmt: skip
    for b, n in enumerate(lengths):
        q, k, v, o = qs[b], ks[b], vs[b], plain[b]
        found["padded"] &= equal(batch[b, :, longest - n :].transpose(0, 1), o)
        found["padded"] &= ~batch[b, :, : longest - n].any()
        found["cache"] &= equal(step[b, :, 0], o[-1])
        found["varlen"] &= equal(flat[offsets[b] : offsets[b + 1]], o)
        size = pick([1, 16, 100, 300], gen) if n < 100 else pick([33, 100, 300, 512], gen)
        cut = int(torch.randint(n, (1,), generator=gen))
        for first in (cut // size * size, max(0, (n - 1) // size * size)):
            stop = min(n, first + size)
            found["chunks"] &= equal(one(q[first:stop], k[:stop], v[:stop]), o[first:stop])
        found["decode"] &= equal(
            one(q[cut : cut + 1], k[: cut + 1], v[: cut + 1]), o[cut : cut + 1]
        )
        for parallel in (False, True):
            found["splits"] &= equal(one(q[-1:], k, v, parallel=parallel), o[-1:])
    row = dict(
        op="attention",
        seed=seed,
        dtype=str(dtype)[6:],
        data=kind,
        window=str(window),
        heads=f"{h}/{hk}",
        width=d,
        lengths="/".join(map(str, lengths)),
        **found,
    )
    if seed // len(SETTINGS) % 4:
        return {**row, "elements": 0}
    return {**row, **accuracy(qs[0], ks[0], vs[0], plain[0], window)}


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of x at a root mean square of one."""
    return (x / x.float().square().mean(-1, keepdim=True).sqrt().clamp_min(1e-3)).to(x.dtype)


def engines(one: Callable[..., torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
           wanted: torch.Tensor) -> bool | torch.Tensor:  # fmt: skip
    """Whether plain loads, the copy engine and specialised warps give the same bits."""
    usual = plan.shape_of
    same_all: bool | torch.Tensor = True
    for tile in (
        (64, 4, 2, "loads"),
        (64, 4, 2, "copies"),
        (128, 8, 2, "copies"),
        (128, 4, 2, "warps"),
    ):
        plan.shape_of = lambda *_, tile=tile: tile  # type: ignore[assignment]
        try:
            if q.element_size() == 2 and q.shape[-1] <= 128:
                same_all &= equal(one(q, k, v, parallel=False), wanted)
        finally:
            plan.shape_of = usual
    return same_all


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


def main() -> int:
    given = cases.arguments()
    # Every process takes whole settings, so that few kernels are compiled twice.
    share = max(1, len(SETTINGS) * 4)
    jobs = [[(seed,) for seed in given.seeds[first::share]] for first in range(share)]
    rows = cases.run(case, [job for job in jobs if job], given)
    return int(cases.report(given.path, rows, ["attention"], CHECKS) > 0)


if __name__ == "__main__":
    sys.exit(main())
