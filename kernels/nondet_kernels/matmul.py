"""Matrix products whose rows depend on nothing but themselves: matmul, bmm and linear.

    out[m, n] = beta * bias[m, n] + alpha * sum_k a[m, k] b[k, n]

The sum over k has one order for given (N, K), see ``matmul_kernels``. Accumulation, bias, alpha and
beta are FP32; there is one rounding, to the output type. FP32 inputs are multiplied in IEEE FP32
unless ``allow_tf32``; FP64 runs in FP64 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .matmul_launch import Again, launch
from .matmul_plan import Plan, slices
from .support import differentiable, on_device, require


def matmul_reference(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None,
                     alpha: float = 1.0, beta: float = 1.0) -> torch.Tensor:  # fmt: skip
    """The same function in plain PyTorch, computed in float64 and rounded once."""
    out = alpha * (a.double() @ b.double())
    if bias is not None and beta != 0:
        out = out + beta * bias.double()
    return out.to(a.dtype)


def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0,
           beta: float = 1.0, out: torch.Tensor | None = None, allow_tf32: bool = False,
           ) -> torch.Tensor:  # fmt: skip
    """``beta * bias + alpha * (a @ b)``, batch-invariant (aten mm, addmm and their out forms).

    Args:
        a: (M, K), any strides.
        b: (K, N), any strides, same dtype.
        bias: anything that broadcasts to (M, N); ignored, NaN included, when ``beta`` is 0.
        alpha, beta: factors.
        out: (M, N) tensor to write to, any strides; float32 is allowed for 16-bit inputs.
        allow_tf32: let FP32 inputs use the tensor cores' TF32 mode.

    Raises:
        ValueError: shapes that do not fit. TypeError: dtypes that differ or are not floats.
    """
    key = None
    if out is None:
        key = (_layout(a), _layout(b), _layout(bias), alpha, beta, allow_tf32)
        ready = _ready.get(key)
        if ready is not None:
            return ready(a, b, bias)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    c = None if bias is None else bias.expand(a.shape[0], b.shape[1])
    result, again = _product(a[None], b[None], c if c is None else c[None], alpha, beta,
                             None if out is None else out[None], allow_tf32,
                             slices(b.shape[1], a.shape[1]), None)  # fmt: skip
    if key is not None and again is not None:
        _remember(key, again, result.shape[1:], a, beta)
    return result[0] if out is None else out


_ready: dict[Any, Callable[..., torch.Tensor]] = {}


def _layout(x: torch.Tensor | None) -> Any:
    """All a launch depends on but the address: sizes, strides, type, device, alignment."""
    return None if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15)


def _remember(key: Any, again: Callable[..., None], shape: Sequence[int], like: torch.Tensor,
              beta: float) -> None:  # fmt: skip
    """Keep a launch whose every choice is made, so that the next such product only starts it.

    At decode a model makes the same few hundred products every step, and host time is the cost.
    """
    dtype, device, index = like.dtype, like.device, like.device.index

    def ready(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        o = torch.empty(shape, dtype=dtype, device=device)
        c = bias if beta else None
        if torch.cuda.current_device() == index:
            again(a, b, o, c)
        else:
            with on_device(device):
                again(a, b, o, c)
        return o

    if len(_ready) > 8192:  # Ever new numbers of rows: do not grow without end.
        _ready.clear()
    _ready[key] = ready


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
           allow_tf32: bool = False) -> torch.Tensor:  # fmt: skip
    """``x @ weight.T + bias`` with x (..., K), weight (N, K), bias (N,); differentiable."""
    if differentiable(x, weight, bias):
        result: torch.Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, allow_tf32
        )
        return result
    return _linear(x, weight, bias, allow_tf32)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            allow_tf32: bool) -> torch.Tensor:  # fmt: skip
    key = (_layout(x), _layout(weight), _layout(bias), allow_tf32, "linear")
    ready = _ready.get(key)
    if ready is not None:
        return ready(x, weight, bias)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear: shapes {tuple(x.shape)} and {tuple(weight.shape)} do not fit")
    n, k = weight.shape
    flat = x.reshape(math.prod(x.shape[:-1]), k)
    c = None if bias is None else bias.expand(1, flat.shape[0], n)
    out, again = _product(flat[None], weight.t()[None], c, 1.0, 1.0, None, allow_tf32,
                          slices(n, k), None)  # fmt: skip
    shape = (*x.shape[:-1], n)
    if again is not None and flat.data_ptr() == x.data_ptr():
        _remember(key, again, shape, x, 1.0)
    return out.view(shape)


class _Linear(torch.autograd.Function):
    """Rows of the gradient of x are invariant; that of the weight sums over all rows in order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                allow_tf32: bool) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.allow_tf32, ctx.has_bias = allow_tf32, bias is not None
        return _linear(x, weight, bias, allow_tf32)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from .reduce import sum as ordered_sum

        x, weight = ctx.saved_tensors
        g = grads[0].reshape(-1, weight.shape[0])
        gx = matmul(g, weight, allow_tf32=ctx.allow_tf32).view(x.shape)
        gw = matmul(g.t(), x.reshape(-1, x.shape[-1]), allow_tf32=ctx.allow_tf32)
        return gx, gw, ordered_sum(g, 0) if ctx.has_bias else None, None


def bmm(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, alpha: float = 1.0,
        beta: float = 1.0, out: torch.Tensor | None = None, allow_tf32: bool = False,
        count: tuple[int, int] | None = None, how: Plan | None = None) -> torch.Tensor:  # fmt: skip
    """``beta * bias + alpha * (a @ b)`` for a (B, M, K), b (B, K, N): aten bmm and baddbmm.

    K is one slice here, so appending zeros to K leaves the bits alone.

    Args:
        count: number and length of the K slices; one slice if not given.
        how: the plan to run; chosen from the sizes if not given. It never changes a bit.
    """
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ValueError(f"bmm: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    c = None if bias is None else bias.expand(a.shape[0], a.shape[1], b.shape[2])
    count = count or (1, max(a.shape[2], 1))
    result, _ = _product(a, b, c, alpha, beta, out, allow_tf32, count, how)
    return result if out is None else out


def _product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
             out: torch.Tensor | None, allow_tf32: bool, count: tuple[int, int],
             how: Plan | None) -> tuple[torch.Tensor, Again | None]:  # fmt: skip
    """The checked product of 3-D operands, and how to start it again on others laid out alike."""
    batch, m, k = a.shape
    c = None if beta == 0 else c
    device = require(a, b, c, out)
    if a.dtype != b.dtype or (c is not None and c.dtype != a.dtype):
        raise TypeError(
            f"matmul: dtypes differ: {a.dtype}, {b.dtype}, {c if c is None else c.dtype}"
        )
    o = _output(out, a, b, (batch, m, b.shape[2]))
    again: Again | None = None
    if o.numel() and k == 0:
        o.zero_() if c is None else torch.mul(c, beta, out=o)
    elif o.numel():
        with on_device(device):
            if a.dtype == torch.float64 and (alpha != 1 or c is not None):
                # The kernel's scalars are FP32; pointwise operations are invariant by nature.
                launch(a, b, o, None, 1.0, 1.0, allow_tf32, count, how)
                o.mul_(alpha)
                if c is not None:
                    o.add_(c, alpha=beta)
            else:
                again = launch(a, b, o, c, alpha, beta, allow_tf32, count, how)
    if out is not None and o is not out:
        out.copy_(o)
    return o, again


def _output(out: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor,
            shape: tuple[int, int, int]) -> torch.Tensor:  # fmt: skip
    """Where the kernel writes: ``out``, or a fresh tensor if that would overwrite an input."""
    if out is None:
        return torch.empty(shape, dtype=a.dtype, device=a.device)
    if tuple(out.shape) != shape:
        raise ValueError(f"matmul: out has shape {tuple(out.shape)}, expected {shape}")
    wide = out.dtype == torch.float32 and a.dtype.itemsize == 2
    if out.dtype != a.dtype and not wide:
        raise TypeError(f"matmul: out is {out.dtype}, expected {a.dtype}")
    mine = out.untyped_storage().data_ptr()
    if mine in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()) or (
        a.dtype == torch.float64
    ):
        return torch.empty(shape, dtype=out.dtype, device=out.device)
    return out
