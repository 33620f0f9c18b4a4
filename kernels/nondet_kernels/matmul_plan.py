"""How a product is cut: what may change its bits (N, K alone) and what may not (everything else).

``slices`` fixes the order of additions. ``plan`` picks kernel, tile, warps and stages from the
number of rows too; those never change a bit, which the tests assert. The plans are frozen data in
``tables/``, found once by ``kernels/bench/tune_matmul.py``; nothing is tuned at run time.
"""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import NamedTuple

from .support import cdiv

SLICE_UNIT = 128
"""Slices end at multiples of this many k; a block that overhangs one is masked."""


class Plan(NamedTuple):
    """One way to run the product.

    ``kernel`` is "tile" or "stream"; ``mode`` as described in ``matmul_kernels``; ``swap`` puts
    the weights on the left of the tensor-core product (tile kernel); ``per_sm`` is the number of
    programs a multiprocessor (stream kernel).
    """

    kernel: str
    mode: str
    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    swap: bool = False
    per_sm: int = 1


@functools.cache
def slices(n: int, k: int) -> tuple[int, int]:
    """Number of K slices of an (N, K) product and the length of one: a function of N, K alone.

    Two slices where the columns are few and the sum is long, else one. Measured on the H200, more
    slices win up to a fifth at decode and lose more than that at prefill, for nearly every shape.
    """
    wanted = 2 if n <= 2048 and k >= 8192 else 1
    length = max(cdiv(cdiv(k, wanted), SLICE_UNIT), 1) * SLICE_UNIT
    return max(cdiv(k, length), 1), length


@functools.cache
def table() -> dict[tuple[int, int], list[tuple[int, Plan]]]:
    """(N, K) -> (largest number of rows, plan), ascending; the last entry serves all above."""
    text = resources.files(__package__).joinpath("tables/hopper.json").read_text()
    found = {}
    for shape, rows in json.loads(text)["plans"].items():
        n, k = map(int, shape.split(","))
        found[n, k] = [(most, Plan(kernel, "", *rest)) for most, kernel, *rest in rows]
    return found


@functools.cache
def nearest(n: int, k: int) -> list[tuple[int, Plan]]:
    """Plans of the measured shape closest to (N, K) in ratio; for a measured one, its own."""

    def distance(shape: tuple[int, int]) -> float:
        return abs(math.log(shape[0] / n)) + abs(math.log(shape[1] / k))

    return table()[min(table(), key=distance)]


def plan(m: int, n: int, k: int, bits: int, aligned: bool, programs: int,
         tf32: bool = False) -> Plan:  # fmt: skip
    """Kernel and tile for an (M, K) by (K, N) product.

    Args:
        m, n, k: sizes, all positive.
        bits: width of the input type, 16, 32 or 64.
        aligned: the tensor copy engine can read both operands.
        programs: multiprocessors of the device.
        tf32: FP32 inputs may use the tensor cores.
    """
    count = slices(n, k)[0]
    if bits != 16:
        return generic(m, n, bits, count, programs, tf32)
    rows = nearest(n, k)
    how = next((how for most, how in rows if m <= most), rows[-1][1])
    if how.kernel == "stream" and not aligned:
        return generic(m, n, bits, count, programs)
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    if count == 1:
        return how._replace(mode="whole")
    if tiles <= programs:
        return how._replace(mode="parallel")
    return how._replace(mode="spill" if how.kernel == "stream" else "walk")


def generic(m: int, n: int, bits: int, count: int, programs: int, tf32: bool = False) -> Plan:
    """Any strides and any type, without the copy engine; BLOCK_K follows the type alone."""
    if bits == 16:
        tile = (16, 64, 64, 4, 3) if m <= 16 else (64, 64, 64, 4, 3)
    elif bits == 64:
        tile = (16, 16, 16, 4, 2) if m <= 16 else (32, 32, 16, 4, 2)
    elif m > 16:
        tile = (64, 64, 16, 8, 2)
    elif tf32:
        tile = (16, 32, 16, 4, 3)  # The tensor cores take 16 rows at least.
    else:
        # Without tensor cores a row of the tile costs as much as a row of the product.
        tile = (1, 32, 16, 1, 6) if m == 1 else (4, 32, 16, 2, 6)
    return tiled(m, n, bits, count, programs, tile)


def tiled(m: int, n: int, bits: int, count: int, programs: int,
          tile: tuple[int, int, int, int, int]) -> Plan:  # fmt: skip
    """The plan of a tile (bm, bn, bk, warps, stages): few tiles share their slices out."""
    bm, bn = tile[:2]
    few = cdiv(m, bm) * cdiv(n, bn) < (2 if bits == 32 else 1) * programs
    mode = "whole" if count == 1 else ("parallel" if few else "walk")
    return Plan("tile", mode, *tile)
