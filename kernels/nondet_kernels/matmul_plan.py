"""How a product is cut: what may change its bits (N, K alone) and what may not (everything else).

``slices`` fixes the order of additions. ``plan`` picks kernel, tile, warps and stages from the
number of rows too; those never change a bit, which the tests assert. All figures are frozen data
in ``tables/``, found once per GPU by ``kernels/bench/tune_matmul.py``; nothing is tuned at run time.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any, NamedTuple

from .support import cdiv, next_power_of_2

SLICE_UNIT = 128
"""Slices end at multiples of this many k; every BLOCK_K divides it."""


class Plan(NamedTuple):
    """One way to run the product.

    ``kernel`` is "tile" or "stream"; ``mode`` as described in ``matmul_kernels``; ``swap`` puts
    the weights on the left of the tensor-core product (tile kernel only).
    """

    kernel: str
    mode: str
    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    swap: bool = False
    special: bool = False


@functools.cache
def tables() -> dict[str, Any]:
    """The frozen figures: ``slices`` by "N,K", and ``tiles`` by kernel size class."""
    text = resources.files(__package__).joinpath("tables/hopper.json").read_text()
    data: dict[str, Any] = json.loads(text)
    return data


@functools.cache
def slices(n: int, k: int) -> tuple[int, int]:
    """Number of K slices of an (N, K) product and the length of one: a function of N, K alone.

    The rule wants 128 programs of 64 columns for a memory-bound product, slices of at least 512,
    and at most 8 of them; the table overrides it where measurement found better.
    """
    wanted = tables()["slices"].get(f"{n},{k}", 0)
    if not wanted:
        wanted = 1
        while wanted < 8 and cdiv(n, 64) * wanted < 96 and k // (2 * wanted) >= 512:
            wanted *= 2
    length = max(cdiv(cdiv(k, wanted), SLICE_UNIT), 1) * SLICE_UNIT
    return max(cdiv(k, length), 1), length


def _skinny(m: int, n: int, k: int, mode: str) -> Plan:
    """At most 64 rows: the weights are read once, so keep many bytes in flight."""
    bm = 16 if m <= 16 else max(32, next_power_of_2(m))
    bk = 128 if k % 128 == 0 or k > 1024 else 64
    size, warps, stages = tables()["skinny"].get(f"{n},{k},{bm}") or tables()["skinny"][str(bm)]
    return Plan("tile", mode, bm, size, bk, warps, stages, swap=True)


def _stream(m: int, n: int, k: int, count: int, programs: int) -> Plan:
    """More rows and aligned operands: the largest tile that still gives every program work."""
    for bm, bn, warps, stages, fill in tables()["stream"]:
        tiles = cdiv(m, bm) * cdiv(n, bn)
        if tiles * count >= programs * fill:
            break
    if count == 1:
        mode = "whole"
    else:
        mode = "parallel" if tiles < programs * tables()["spill_from"] else "spill"
    return Plan("stream", mode, bm, bn, 64, warps, stages)


def plan(m: int, n: int, k: int, bits: int, aligned: bool, programs: int) -> Plan:
    """Kernel and tile for an (M, K) by (K, N) product.

    Args:
        m, n, k: sizes, all positive.
        bits: width of the input type, 16, 32 or 64.
        aligned: the tensor copy engine can read both operands.
        programs: multiprocessors of the device.
    """
    count = slices(n, k)[0]
    if bits == 16 and m <= 64:
        return _skinny(m, n, k, "whole" if count == 1 else "parallel")
    if bits == 16 and aligned:
        return _stream(m, n, k, count, programs)
    return generic(m, n, bits, count, programs)


def generic(m: int, n: int, bits: int, count: int, programs: int) -> Plan:
    """Any strides and any type, without the copy engine."""
    if bits == 16:
        bm, bn, bk, warps, stages = (16, 64, 64, 4, 3) if m <= 16 else (64, 64, 64, 4, 3)
    elif bits == 32:
        bm, bn, bk, warps, stages = (16, 32, 32, 4, 3) if m <= 16 else (64, 64, 16, 8, 3)
    else:
        bm, bn, bk, warps, stages = (16, 16, 16, 4, 2) if m <= 16 else (32, 32, 16, 4, 2)
    few = cdiv(m, bm) * cdiv(n, bn) < programs
    mode = "whole" if count == 1 else ("parallel" if few else "walk")
    return Plan("tile", mode, bm, bn, bk, warps, stages)
