"""Does scaled_dot_product_attention repeat itself? Each of torch's kernels, on equal inputs.

    python3 kernels/bench/check_repeat.py OUT.csv [CALLS]

Shapes of a decode step of Qwen2.5-1.5B as transformers asks for it: one query a sequence, 12 heads
128 wide, the two heads of keys repeated, a mask of left padding; and some prefills. CALLS (200)
calls on the same tensors, another stream busy at times. ``answers``: how many different outputs
came out, by their bits (at most 32 are told apart); ``rows``: how many of ``rows_in_all`` query
rows were not always the same; ``default``: torch's own choice among all kernels. A kernel that
refuses a shape is listed with its reason. Control: sums by atomic addition (``atomic_add``) must
differ, or the check had no power on this machine.
"""

from __future__ import annotations

import csv
import itertools
import sys
from pathlib import Path
from typing import Any

import torch
from timing import hardware
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, KV_HEADS, WIDTH = 12, 2, 128
KEYS = (64, 127, 128, 129, 160, 192, 256, 512, 1024)
BATCHES = (1, 8, 32, 64)
KERNELS: dict[str, Any] = {
    "default": list(SDPBackend.__members__.values())[1:],  # all but ERROR
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
COLUMNS = ("kernel", "dtype", "batch", "queries", "keys", "mask", "calls", "answers", "rows",
           "rows_in_all", "reason")  # fmt: skip


def inputs(batch: int, queries: int, keys: int, masked: bool, dtype: torch.dtype) -> list[Any]:
    """Query (B, 12, Q, 128), keys and values (B, 12, K, 128), and a mask (B, 1, Q, K) or None."""
    draw = torch.Generator("cuda").manual_seed(keys * 1000 + batch)

    def normal(heads: int, length: int) -> Tensor:
        shape = (batch, heads, length, WIDTH)
        return torch.randn(shape, generator=draw, device="cuda", dtype=torch.float32).to(dtype)

    repeat = HEADS // KV_HEADS
    k, v = (normal(KV_HEADS, keys).repeat_interleave(repeat, 1) for _ in range(2))
    mask = None
    if masked:
        pad = torch.arange(batch, device="cuda") % 7
        seen = torch.arange(keys, device="cuda")[None, :] >= pad[:, None]
        mask = seen[:, None, None, :].expand(batch, 1, queries, keys).clone()
        if queries > 1:
            causal = torch.ones((queries, keys), dtype=torch.bool, device="cuda").tril(
                keys - queries
            )
            mask &= causal
            mask[..., 0] |= ~mask.any(-1)
    return [normal(HEADS, queries), k, v, mask]


def answers(call: Any, calls: int) -> tuple[int, int, int]:
    """Different outputs, query rows that were not always the same, and rows in all."""
    noise = torch.randn((2048, 2048), device="cuda")
    side = torch.cuda.Stream()
    first = call().clone()
    view = torch.int16 if first.element_size() == 2 else torch.int32
    known = [first]
    moved = torch.zeros(first.shape[:-1], dtype=torch.bool, device="cuda")
    for number in range(calls - 1):
        if number % 3 == 0:
            with torch.cuda.stream(side):
                noise = torch.mm(noise, noise).clamp_(-1, 1)
        out = call()
        moved |= (out.view(view) != first.view(view)).any(-1)
        if (
            not any(torch.equal(out.view(view), one.view(view)) for one in known)
            and len(known) < 32
        ):
            known.append(out.clone())
    torch.cuda.synchronize()
    return len(known), int(moved.sum()), moved.numel()


def control(calls: int) -> tuple[int, int, int]:
    """Sums of one million floats into 64 places by atomic addition: their order is the GPU's."""
    values = torch.randn(1_000_000, device="cuda")
    places = torch.randint(0, 64, values.shape, device="cuda")

    def call() -> Tensor:
        return torch.zeros((64, 1), device="cuda").index_add_(0, places, values[:, None])

    return answers(call, calls)


def rows(calls: int) -> Any:
    """One row a kernel and shape."""
    counts = ("answers", "rows", "rows_in_all")
    known = {"kernel": "atomic_add", "dtype": "fp32", "calls": calls}
    yield {**known, **dict(zip(counts, control(calls), strict=True))}
    shapes = [(batch, 1, keys, True) for batch, keys in itertools.product(BATCHES, KEYS)]
    shapes += [(64, 1, keys, False) for keys in KEYS]
    shapes += [(8, keys, keys, masked) for keys in (128, 129, 512) for masked in (True, False)]
    for dtype, (batch, queries, keys, masked) in itertools.product(
        (torch.bfloat16, torch.float32), shapes
    ):
        q, k, v, mask = inputs(batch, queries, keys, masked, dtype)
        for name, backend in KERNELS.items():
            row = {"kernel": name, "dtype": {torch.bfloat16: "bf16"}.get(dtype, "fp32"),
                   "batch": batch, "queries": queries, "keys": keys, "mask": masked,
                   "calls": calls}  # fmt: skip

            def call(q=q, k=k, v=v, mask=mask, backend=backend) -> Tensor:  # type: ignore[no-untyped-def]
                with sdpa_kernel(backend):
                    causal = mask is None and q.shape[2] > 1
                    return torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, mask, is_causal=causal
                    )

            try:
                found = answers(call, calls)
            except RuntimeError as error:
                yield {**row, "calls": 0, "reason": str(error).splitlines()[0][:120]}
                continue
            yield {**row, **dict(zip(counts, found, strict=True))}


def main(out: Path, calls: int = 200) -> None:
    """Write OUT.csv, and print what did not repeat itself."""
    machine = hardware()
    with out.open("w", newline="") as file:
        table = csv.DictWriter(file, (*COLUMNS, *machine), restval="", lineterminator="\n")
        table.writeheader()
        for row in rows(calls):
            table.writerow({**row, **machine})
            file.flush()
            if row.get("answers", 0) > 1:
                print({key: value for key, value in row.items() if value != ""}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:3]))
