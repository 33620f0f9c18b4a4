"""CPU reductions along rows in one canonical layout: mean, sum, softmax, log_softmax.

torch's CPU reductions are row by row and independent of the batch as long as the reduced dimension
is the last, contiguous one. Three things break it: another layout takes another loop, with another
order of additions; a lone row of 32,768 or more elements is split over threads; softmax over a
dimension that is not the last runs in vectors across rows. So every call is brought into the one
layout that holds, and calls that are in it already pass straight through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .original import original

# ATen's grain size: below it one thread reduces a row from end to end.
GRAIN = 32768


def sum_dims(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *,
             dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    """aten::sum.dim_IntList."""
    return _reduced("sum.dim_IntList", x, dim, keepdim, dtype)


def mean_dims(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *,
              dtype: torch.dtype | None = None) -> Tensor:  # fmt: skip
    """aten::mean.dim."""
    return _reduced("mean.dim", x, dim, keepdim, dtype)


def sum_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """aten::sum."""
    return _reduced("sum.dim_IntList", x, None, False, dtype)


def mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """aten::mean."""
    return _reduced("mean.dim", x, None, False, dtype)


def sum_out(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *,
            dtype: torch.dtype | None = None, out: Tensor) -> Tensor:  # fmt: skip
    """aten::sum.IntList_out; also called inside torch's own mean."""
    if not _canonical(x, dim):
        dtype = out.dtype if dtype is None else dtype
        return into(out, _reduced("sum.dim_IntList", x, dim, keepdim, dtype))
    result: Tensor = original("sum.IntList_out")(x, dim, keepdim, dtype=dtype, out=out)
    return result


def mean_out(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *,
             dtype: torch.dtype | None = None, out: Tensor) -> Tensor:  # fmt: skip
    """aten::mean.out."""
    return into(out, _reduced("mean.dim", x, dim, keepdim, dtype).to(out.dtype))


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """aten::_softmax."""
    return _along_last("_softmax", x, dim, half_to_float)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """aten::_log_softmax."""
    return _along_last("_log_softmax", x, dim, half_to_float)


def softmax_out(x: Tensor, dim: int, half_to_float: bool, *, out: Tensor) -> Tensor:
    """aten::_softmax.out."""
    return into(out, _along_last("_softmax", x, dim, half_to_float))


def log_softmax_out(x: Tensor, dim: int, half_to_float: bool, *, out: Tensor) -> Tensor:
    """aten::_log_softmax.out."""
    return into(out, _along_last("_log_softmax", x, dim, half_to_float))


def into(out: Tensor, result: Tensor) -> Tensor:
    """Write ``result`` to ``out`` with the resizing rules of out= arguments."""
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def _canonical(x: Tensor, dim: Sequence[int] | None) -> bool:
    """Only the last dimension is reduced, rows are contiguous and short enough for one thread."""
    if dim is None or len(dim) != 1 or x.dim() == 0 or dim[0] % x.dim() != x.dim() - 1:
        return False
    return x.is_contiguous() and 1 < x.shape[-1] < GRAIN


def _reduced(name: str, x: Tensor, dim: Sequence[int] | int | None, keepdim: bool,
             dtype: torch.dtype | None) -> Tensor:  # fmt: skip
    kernel = original(name)
    if isinstance(dim, int):
        dim = (dim,)
    if _canonical(x, dim) or x.numel() == 0 or x.dim() == 0:
        result: Tensor = kernel(x, dim, keepdim, dtype=dtype)
        return result
    dims = sorted({d % x.dim() for d in dim}) if dim else list(range(x.dim()))
    if dim and (len(dims) != len(dim) or any(not -x.dim() <= d < x.dim() for d in dim)):
        return kernel(x, dim, keepdim, dtype=dtype)  # type: ignore[no-any-return]  # torch's error
    kept = [d for d in range(x.dim()) if d not in dims]
    length = math.prod(x.shape[d] for d in dims)
    rows = x.permute(*kept, *dims).reshape(-1, length)
    rows = rows.contiguous()
    count = rows.shape[0]
    if count == 1:
        # A lone output is reduced by all threads together; two outputs are not.
        rows = rows.expand(2, length)
    result = kernel(rows, [1], False, dtype=dtype)[:count]
    if keepdim:
        return result.reshape([1 if d in dims else x.shape[d] for d in range(x.dim())])
    return result.reshape([x.shape[d] for d in kept])


def _along_last(name: str, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    kernel = original(name)
    if x.dim() == 0 or not -x.dim() <= dim < x.dim() or x.numel() == 0:
        result: Any = kernel(x, dim, half_to_float)
    elif dim % x.dim() == x.dim() - 1:
        result = kernel(x.contiguous(), -1, half_to_float)
    else:
        moved = x.transpose(dim, -1).contiguous()
        result = kernel(moved, -1, half_to_float).transpose(dim, -1).contiguous()
    return result  # type: ignore[no-any-return]
