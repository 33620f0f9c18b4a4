"""Draws for the property cases: data, layouts, and each operation beside torch's and the truth."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import numpy as np
import torch
from nondet_kernels import argmax, matmul, norm, reduce, softmax

WIDTHS = [
    1,
    2,
    3,
    7,
    16,
    31,
    64,
    100,
    127,
    128,
    255,
    256,
    257,
    576,
    960,
    1000,
    1024,
    1536,
    2047,
    2048,
    4096,
    5000,
    8960,
]
LONG = [*WIDTHS, 8192, 8193, 20000, 49152, 70001, 151936]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
KINDS = ["normal", "wide", "cancelling", "outliers"]
if "ACTIVATIONS" in os.environ:
    KINDS.append("activations")
"""Kinds of data; real activations where a file of them is named (capture_activations.py)."""
INTS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def pick(values: list[Any], gen: torch.Generator) -> Any:
    return values[int(torch.randint(len(values), (1,), generator=gen))]


@functools.cache
def activations() -> torch.Tensor:
    """A model's captured values, flat, on the GPU."""
    found: torch.Tensor = torch.load(os.environ["ACTIVATIONS"])
    return found.cuda().float()


def data(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Normal; wide exponents; cancelling pairs; few channels a hundred times the others; or real.

    Real ones start at a random place of what was captured, and repeat where that is too short.
    """
    if kind == "activations":
        source, count = activations(), math.prod(shape)
        first = int(torch.randint(len(source), (1,)))
        place = torch.arange(first, first + count, device=source.device) % len(source)
        return source[place].view(shape).to(dtype)
    x = torch.randn(shape, device="cuda", dtype=torch.float32)
    if kind == "wide":
        x = x * torch.exp2(torch.rand(shape, device="cuda") * 16 - 8)
    elif kind == "cancelling":
        half = x.shape[-1] // 2
        x[..., half : 2 * half] = -x[..., :half] + x[..., half : 2 * half] * 2e-3
    elif kind == "outliers":
        x[..., :: max(1, x.shape[-1] // 5)] *= 100
    return x.to(dtype)


def layouts(x: torch.Tensor, kind: int) -> torch.Tensor:
    """The same values behind other strides or another alignment."""
    rows, width = x.shape
    if kind == 0:
        return x.t().contiguous().t()
    if kind == 1:
        wide = torch.full((rows, width + 3), 7.0, dtype=x.dtype, device=x.device)
        wide[:, 1 : width + 1] = x
        return wide[:, 1 : width + 1]
    if kind == 2:
        wide = torch.full((rows, 2 * width), 7.0, dtype=x.dtype, device=x.device)
        wide[:, ::2] = x
        return wide[:, ::2]
    tall = torch.full((3 * rows, width), 7.0, dtype=x.dtype, device=x.device)
    tall[::3] = x
    return tall[::3]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x if not x.is_floating_point() else x.contiguous().view(INTS[x.element_size()])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(bits(a), bits(b))


def equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As ``same``, without waiting for the answer: a bool tensor of no dimensions."""
    assert a.shape == b.shape
    return (bits(a) == bits(b)).all()


def ulps(y: torch.Tensor, exact: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Error in units of the last place of max(|exact|, floor), where that is a normal number.

    The floor is the size the result would have without cancellation: the root of the sum of the
    squared terms. Below it no algorithm has correct digits, and ratios would be of two noises.
    """
    info = torch.finfo(y.dtype)
    size = torch.maximum(exact.abs(), floor).clamp_min(info.tiny)
    unit = torch.exp2(torch.floor(torch.log2(size))) * info.eps
    error = (y.double() - exact).abs() / unit
    return error[(size < info.max / 2) & exact.isfinite()]


def long(x: torch.Tensor) -> Any:
    """80-bit NumPy copy: what float64 results are judged by."""
    return x.double().cpu().numpy().astype(np.longdouble)


class Product:
    """matmul, addmm and linear of a row with one weight matrix."""

    def __init__(self, name: str, gen: torch.Generator, dtype: torch.dtype, kind: str) -> None:
        sizes = (
            WIDTHS if dtype.itemsize == 2 else WIDTHS[:17] if dtype.itemsize == 4 else WIDTHS[:13]
        )
        self.name, self.width, n = name, pick(sizes, gen), pick(sizes, gen)
        w = data((n, self.width), kind, dtype) / self.width**0.5
        turn = int(torch.randint(5, (1,), generator=gen))
        self.w = w.t().contiguous().t() if turn == 4 else layouts(w, turn) if turn else w
        self.c = data((n,), "normal", dtype) if name != "matmul" else None
        pairs = [(1.0, 1.0), (0.5, 2.0), (-1.5, 0.0)]
        self.alpha, self.beta = pick(pairs, gen) if name == "addmm" else (1.0, 1.0)

    def ours(self, x: torch.Tensor) -> torch.Tensor:
        if self.name == "linear":
            return matmul.linear(x, self.w, self.c)
        return matmul.matmul(x, self.w.t(), self.c, self.alpha, self.beta)

    def torch(self, x: torch.Tensor) -> torch.Tensor:
        if self.name == "linear":
            return torch.nn.functional.linear(x, self.w, self.c)
        if self.c is None:
            return torch.mm(x, self.w.t())
        return torch.addmm(self.c, x, self.w.t(), alpha=self.alpha, beta=self.beta)

    def exact(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = torch.zeros(1, device="cuda") if self.c is None or self.beta == 0 else self.c
        if x.dtype == torch.float64:
            y = self.alpha * (long(x) @ long(self.w).T) + self.beta * long(c)
            y = torch.from_numpy(y.astype(np.float64)).cuda()
        else:
            y = self.alpha * (x.double() @ self.w.double().t()) + self.beta * c.double()
        floor = (x.double().square() @ self.w.double().square().t()).sqrt() * abs(self.alpha)
        return y, floor


class Batched(Product):
    """bmm: the row is a row of every matrix of a batch of three."""

    def ours(self, x: torch.Tensor) -> torch.Tensor:
        y = matmul.bmm(torch.stack([x, x.flip(0), x]), self.w.t().expand(3, -1, -1))
        # The same matrix twice in one batch: if its rows differ, no row compares equal.
        return torch.where(equal(y[0], y[2]), y[2], torch.nan)

    def torch(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x[None], self.w.t()[None])[0]


class Row:
    """An operation on the last dimension."""

    def __init__(self, name: str, gen: torch.Generator, dtype: torch.dtype, kind: str) -> None:
        self.name = name
        self.width = d = pick(WIDTHS if "norm" in name else LONG, gen)
        self.w, self.b = data((d,), "normal", dtype), data((d,), "normal", dtype)

    def ours(self, x: torch.Tensor) -> torch.Tensor:
        return {
            "rms_norm": lambda: norm.rms_norm(x, self.w, 1e-6),
            "rms_norm_residual": lambda: norm.rms_norm(x, self.w, 1e-6, residual=x * 0.5)[0],
            "layer_norm": lambda: norm.layer_norm(x, [self.width], self.w, self.b),
            "softmax": lambda: softmax.softmax(x, -1),
            "log_softmax": lambda: softmax.log_softmax(x, -1),
            "mean": lambda: reduce.mean(x, -1),
            "sum": lambda: reduce.sum(x, -1),
            "argmax": lambda: argmax.argmax(x, -1),
        }[self.name]()

    def torch(self, x: torch.Tensor) -> torch.Tensor:
        f, d = torch.nn.functional, (self.width,)
        return {
            "rms_norm": lambda: f.rms_norm(x, d, self.w, 1e-6),
            "rms_norm_residual": lambda: f.rms_norm(x + x * 0.5, d, self.w, 1e-6),
            "layer_norm": lambda: f.layer_norm(x, d, self.w, self.b),
            "softmax": lambda: torch.softmax(x, -1),
            "log_softmax": lambda: torch.log_softmax(x, -1),
            "mean": lambda: torch.mean(x, -1),
            "sum": lambda: torch.sum(x, -1),
            "argmax": lambda: torch.argmax(x, -1),
        }[self.name]()

    def exact(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.name == "rms_norm_residual":
            x = x + x * 0.5
        if x.dtype == torch.float64:
            y = torch.from_numpy(np.asarray(self.formula(long(x), np)).astype(np.float64)).cuda()
        else:
            y = torch.from_numpy(np.asarray(self.formula(x.double().cpu().numpy(), np))).cuda()
        floor = torch.zeros_like(y)
        if self.name in ("mean", "sum"):
            floor = x.double().square().sum(-1).sqrt()
            floor = floor / self.width if self.name == "mean" else floor
        if self.name == "log_softmax":
            floor = floor + 1.0
        if self.name == "layer_norm":
            floor = floor + 2.0**-6
        return y, floor

    def formula(self, x: Any, np: Any) -> Any:
        w, b = (long(t).astype(x.dtype) for t in (self.w, self.b))
        if "rms_norm" in self.name:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type("1e-6")) * w
        if self.name == "layer_norm":
            z = x - x.mean(-1, keepdims=True)
            return z / np.sqrt((z * z).mean(-1, keepdims=True) + x.dtype.type("1e-5")) * w + b
        if self.name in ("mean", "sum"):
            return getattr(x, self.name)(-1)
        z = x - x.max(-1, keepdims=True)
        e = np.exp(z)
        s = e.sum(-1, keepdims=True)
        return e / s if self.name == "softmax" else z - np.log(s)
