"""The aten matrix products on the CPU, each brought to ``blocks.product``.

Rows of the left operand are the rows that stay invariant: for ``mv(A, x)`` these are the rows of A.
Integer and boolean products are exact in any order and stay torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import product
from .cpu_reduce import into
from .original import original

Number = int | float | bool


def mm(a: Tensor, b: Tensor) -> Tensor:
    """aten::mm."""
    if _other(a, b):
        return original("mm")(a, b)  # type: ignore[no-any-return]
    return product(a, b)


def mm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """aten::mm.out."""
    if _other(a, b) or out.dtype != a.dtype:
        return original("mm.out")(a, b, out=out)  # type: ignore[no-any-return]
    return into(out, product(a, b))


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """aten::addmm: ``beta * bias + alpha * a @ b``; a bias times 0 is not read."""
    if _other(a, b) or bias.dtype != a.dtype or not _broadcasts(bias, a.shape[0], b.shape[1]):
        return original("addmm")(bias, a, b, beta=beta, alpha=alpha)  # type: ignore[no-any-return]
    return product(a, b, bias, beta, alpha)


def addmm_out(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1,
              out: Tensor) -> Tensor:  # fmt: skip
    """aten::addmm.out; ``out`` may be the bias."""
    return into(out, addmm(bias, a, b, beta=beta, alpha=alpha))


def addmm_(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """aten::addmm_."""
    return bias.copy_(addmm(bias, a, b, beta=beta, alpha=alpha))


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """aten::bmm, one matrix of the batch after the other."""
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or _other(a[:1], b[:1]):
        return original("bmm")(a, b)  # type: ignore[no-any-return]
    result = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for index in range(a.shape[0]):
        result[index] = product(a[index], b[index])
    return result


def bmm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """aten::bmm.out."""
    return into(out, bmm(a, b))


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1,
            alpha: Number = 1) -> Tensor:  # fmt: skip
    """aten::baddbmm."""
    batch = a.shape[0]
    shape = torch.Size((batch, a.shape[1], b.shape[-1]))
    if a.dim() != 3 or b.dim() != 3 or _other(a, b) or bias.dtype != a.dtype:
        return original("baddbmm")(bias, a, b, beta=beta, alpha=alpha)  # type: ignore[no-any-return]
    added = bias.expand(shape)
    result = a.new_empty(shape)
    for index in range(batch):
        result[index] = product(a[index], b[index], added[index], beta, alpha)
    return result


def baddbmm_out(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1,
                out: Tensor) -> Tensor:  # fmt: skip
    """aten::baddbmm.out."""
    return into(out, baddbmm(bias, a, b, beta=beta, alpha=alpha))


def baddbmm_(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1,
             alpha: Number = 1) -> Tensor:  # fmt: skip
    """aten::baddbmm_."""
    return bias.copy_(baddbmm(bias, a, b, beta=beta, alpha=alpha))


def mv(a: Tensor, x: Tensor) -> Tensor:
    """aten::mv: the rows of ``a`` are the invariant rows."""
    if x.dim() != 1 or _other(a, x[:, None]):
        return original("mv")(a, x)  # type: ignore[no-any-return]
    return product(a, x[:, None])[:, 0]


def addmv(bias: Tensor, a: Tensor, x: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """aten::addmv."""
    if x.dim() != 1 or _other(a, x[:, None]) or bias.dtype != a.dtype or bias.dim() > 1:
        return original("addmv")(bias, a, x, beta=beta, alpha=alpha)  # type: ignore[no-any-return]
    added = bias.expand(a.shape[0])[:, None]
    return product(a, x[:, None], added, beta, alpha)[:, 0]


def _other(a: Tensor, b: Tensor) -> bool:
    """Products that stay torch's own: exact types, complex ones, and what torch will refuse."""
    fits = a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[-1] == b.shape[-2]
    if not fits or (a.dim() == 3 and a.shape[0] != b.shape[0]):
        return True
    return a.dtype != b.dtype or not a.is_floating_point()


def _broadcasts(bias: Tensor, rows: int, columns: int) -> bool:
    shape = (1, 1, *bias.shape)[-2:] if bias.dim() <= 2 else (0, 0)
    return shape[0] in (1, rows) and shape[1] in (1, columns)
