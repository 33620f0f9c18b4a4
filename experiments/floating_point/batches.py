"""Does the first row change when others are computed beside it? Bits and accuracy, both kernels."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from experiments.floating_point.operations import DTYPES, Operation, Sizes, operations
from nondet.invariant import invariant
from nondet.invariant.bits import differing, same_bits

KERNELS = ("default", "invariant")
# How often each case is asked: run to run differences can be rare.
CALLS = {"cpu": 3, "cuda": 20}


def relative(row: Tensor, exact: Tensor) -> float:
    """Distance from the float64 result, relative to its norm."""
    return float((row.double() - exact).norm() / exact.norm())


def measure(operation: Operation, dtype: str, kernels: str, batches: list[int],
            device: str) -> list[dict[str, Any]]:  # fmt: skip
    """One line a batch size. ``differing``: elements with other bits than alone; ``again``: how
    many of ``calls`` calls of the same size gave other bits than the first; ``error`` and
    ``floor``: distance from float64 of the result and of float64 rounded once to the dtype. A size
    that fails has its reason instead."""
    ours = kernels == "invariant"
    exact = operation.exact()
    floor = relative(exact.to(DTYPES[dtype]), exact)
    found = []
    alone: Tensor | None = None
    for size in (size for size in batches if size <= operation.most):
        line: dict[str, Any] = {
            "operation": operation.name, "shape": operation.shape, "dtype": dtype,
            "kernels": kernels, "rows": size, "elements": len(exact),
        }  # fmt: skip
        try:
            with invariant(device=device) if ours else nullcontext():
                row = operation.row(size, ours)
                others = [operation.row(size, ours) for _ in range(CALLS[device] - 1)]
            if size == 1:
                alone = row
            if alone is None:
                raise RuntimeError("it did not run alone, so there is nothing to compare with")
            gap = (row.double() - alone.double()).abs().max() / exact.square().mean().sqrt()
            line |= {
                "differing": differing(row, alone), "calls": CALLS[device],
                "again": sum(not same_bits(row, other) for other in others),
                "largest": float(gap), "error": relative(row, exact), "floor": floor, "reason": "",
            }  # fmt: skip
        except Exception as error:  # an operation that this machine lacks must not end the rest
            line |= {"reason": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
        found.append(line)
    return found


def rows(sizes: Sizes, device: str) -> list[dict[str, Any]]:
    """All operations, dtypes and kernels."""
    found = []
    for name, dtype in DTYPES.items():
        for operation in operations(sizes, dtype, device):
            for kernels in KERNELS:
                found += measure(operation, name, kernels, sizes.batches, device)
        if device == "cuda":
            torch.cuda.synchronize()
    return found
