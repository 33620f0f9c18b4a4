"""``mixed_linear``: FP32 activations times weights kept in 16 bits, computed in FP32.

    out[m, n] = bias[n] + sum_k x[m, k] w[n, k]

Nothing is rounded to 16 bits and no FP32 copy of the weights is written; the sum has one order for
given (N, K), so a row's bits depend on that row alone. See ``mixed_kernels`` for how.
"""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import NamedTuple

import torch

from .matmul import _layout, _ready, _remember
from .matmul_launch import Again, scratch
from .mixed_kernels import mixed_kernel
from .support import (
    HALVES,
    INTERPRETED,
    OutOfResources,
    cdiv,
    on_device,
    processors,
    require,
    start,
    tl,
)

BLOCK_K = 64
"""Products summed by themselves before they are added to the rest: part of the order."""
SPREAD = 2
"""Tiles a processor below which every slice has a program of its own; never changes a bit."""


class MixedPlan(NamedTuple):
    """Tile, warps, stages, side of the weights, blocks a step: none of them changes a bit."""

    bm: int
    bn: int
    warps: int
    stages: int
    swap: bool
    unroll: int = 1


def mixed_reference(x: torch.Tensor, weight: torch.Tensor,
                    bias: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """The same function in plain PyTorch, computed in float64 and rounded once."""
    out = x.double() @ weight.double().t()
    return (out if bias is None else out + bias.double()).float()


@functools.cache
def mixed_slices(n: int, k: int) -> tuple[int, int]:
    """Number of K slices and the length of one: a function of (N, K) alone.

    As many as let tiles of 64 columns occupy three programs a multiprocessor at one row, because a
    program waits for its own chain of blocks; none shorter than 256 k, at most 16.
    """
    wanted = max(1, min(k // 256, 400 * 64 // n, 16))
    length = max(cdiv(cdiv(k, wanted), 2 * BLOCK_K), 1) * 2 * BLOCK_K
    return max(cdiv(k, length), 1), length


@functools.cache
def table() -> dict[tuple[int, int], list[tuple[int, MixedPlan]]]:
    """(N, K) -> (largest number of rows, plan), ascending; as ``bench/mixed_table.py`` writes it.

    Tuned on an H200 that did nothing else; without the programs a slice that ``SPREAD`` adds.
    """
    text = resources.files(__package__).joinpath("tables/mixed_hopper.json").read_text()
    return {
        (int(n), int(k)): [(most, MixedPlan(*how)) for most, *how in rows]
        for (n, k), rows in ((key.split(","), rows) for key, rows in json.loads(text).items())
    }


@functools.cache
def _nearest(n: int, k: int) -> list[tuple[int, MixedPlan]]:
    def distance(shape: tuple[int, int]) -> float:
        return abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k))

    return table()[min(table(), key=distance)]


def mixed_plan(m: int, n: int, k: int) -> MixedPlan:
    """The plan for M rows: that of the measured layer closest to (N, K) in ratio."""
    rows = _nearest(n, k)
    return next((how for most, how in rows if m <= most), rows[-1][1])


def mixed_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
                 how: MixedPlan | None = None) -> torch.Tensor:  # fmt: skip
    """``x @ weight.T + bias`` in FP32, batch-invariant; no gradient.

    Args:
        x: float32 (..., K).
        weight: bf16 or fp16 (N, K), finite.
        bias: (N,) of any of these types, added in FP32.
        how: the plan to run; chosen from the sizes if not given. It never changes a bit.

    Raises:
        ValueError: shapes that do not fit. TypeError: other dtypes.
    """
    key = (_layout(x), _layout(weight), _layout(bias), how, "mixed")
    ready = _ready.get(key)
    if ready is not None:
        return ready(x, weight, bias)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"mixed_linear: shapes {shapes} do not fit")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"mixed_linear: bias of shape {tuple(bias.shape)}, not ({len(weight)},)")
    if x.dtype != torch.float32 or weight.dtype not in HALVES:
        raise TypeError(f"mixed_linear: {x.dtype} by {weight.dtype}, not float32 by 16 bits")
    device = require(x, weight, bias)
    n, k = weight.shape
    flat = x.reshape(math.prod(x.shape[:-1]), k)
    shape = (*x.shape[:-1], n)
    out = torch.empty((flat.shape[0], n), dtype=torch.float32, device=device)
    if out.numel() == 0:
        return out.view(shape)
    if k == 0:
        return (out.zero_() if bias is None else out.copy_(bias.expand_as(out))).view(shape)
    with on_device(device):
        again = _launch(flat, weight, out, bias, how or mixed_plan(len(flat), n, k))
    if again is not None and flat.data_ptr() == x.data_ptr():
        _remember(key, again, shape, x, 1.0)
    return out.view(shape)


def _launch(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None,
            how: MixedPlan) -> Again | None:  # fmt: skip
    (m, k), n = x.shape, w.shape[0]
    count, length = mixed_slices(n, k)
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    parallel = count > 1 and tiles < SPREAD * processors(x.device)
    step = how.unroll * BLOCK_K
    fixed = (m, n, k, length, x.stride(0), x.stride(1), w.stride(0), w.stride(1),
             0 if bias is None else bias.stride(0))  # fmt: skip
    constants = dict(
        S=count,
        BM=how.bm,
        BN=how.bn,
        BK=BLOCK_K,
        UNROLL=how.unroll,
        SWAP=how.swap,
        MODE="parallel" if parallel else "walk",
        EVEN_K=k % step == 0 and (count == 1 or length % step == 0),
        HALF=w.dtype == torch.float16,
        HAS_C=bias is not None,
        # NumPy, which the interpreter multiplies with, has no bf16; the parts fit FP32 as well.
        KIND=tl.float32 if INTERPRETED else tl.bfloat16,
    )
    grid = (tiles, count if parallel else 1, 1)

    def scratched(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return scratch(x, tiles, count * m * n) if parallel else (out, out)

    work, counters = scratched(x, out)
    first = (x, w, out, out if bias is None else bias, work, counters, *fixed)
    for stages in range(how.stages, 0, -1):
        options = dict(num_warps=how.warps, num_stages=stages)
        try:
            compiled = start(mixed_kernel, grid, first, constants, options)
            break
        except OutOfResources:
            # One stage less: a matter of memory, not of bits. GPUs of other kinds have less.
            if stages == 1:
                raise
    if compiled is None:
        return None
    run, rest = compiled[grid], (*fixed, *constants.values())

    def again(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor,
              bias: torch.Tensor | None) -> None:  # fmt: skip
        work, counters = scratched(x, out)
        run(x, w, out, out if bias is None else bias, work, counters, *rest)

    return again
