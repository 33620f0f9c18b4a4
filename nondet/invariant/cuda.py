"""Which aten operation each group replaces on a GPU: the Triton kernels of ``nondet_kernels``.

Functions of one element are invariant there as torch has them, so no group replaces them. Integers
and complex numbers stay torch's own.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .cpu_reduce import into
from .original import original
from .switch import Table, active

Number = int | float | bool
Dims = Sequence[int] | int | None


@functools.cache
def _kernels() -> Any:
    """The kernel package, all modules loaded. Raises RuntimeError where Triton is missing."""
    try:
        from nondet_kernels import argmax, attention, matmul, norm, reduce, softmax
    except ImportError as error:
        raise RuntimeError(
            f"kernels=invariant on cuda needs the extra llm-nondet[gpu] ({error})"
        ) from error
    names = {"argmax": argmax, "attention": attention, "matmul": matmul, "norm": norm,
             "reduce": reduce, "softmax": softmax}  # fmt: skip
    return type("Kernels", (), names)


def tf32() -> bool:
    """Whether products of FP32 may use TF32 now."""
    # What torch.backends.cuda.matmul.fp32_precision reads, without a property's detour; the older
    # allow_tf32 raises once that one has been set.
    return bool(torch._C._get_fp32_precision_getter("cuda", "matmul") == "tf32")


def _matmul_group(kernels: Any) -> dict[str, Callable[..., Any]]:
    matmul, bmm = kernels.matmul.matmul, kernels.matmul.bmm

    def mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return matmul(a, b, out=out, allow_tf32=tf32())  # type: ignore[no-any-return]

    def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1,
              out: Tensor | None = None) -> Tensor:  # fmt: skip
        result: Tensor = matmul(a, b, bias, float(alpha), float(beta), allow_tf32=tf32())
        return result if out is None else into(out, result)  # out may be the bias

    def batched(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        return bmm(a, b, out=out, allow_tf32=tf32())  # type: ignore[no-any-return]

    def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Number = 1, alpha: Number = 1,
                out: Tensor | None = None) -> Tensor:  # fmt: skip
        result: Tensor = bmm(a, b, bias, float(alpha), float(beta), allow_tf32=tf32())
        return result if out is None else into(out, result)

    return {"mm": mm, "mm.out": mm, "addmm": addmm, "addmm.out": addmm, "bmm": batched,
            "bmm.out": batched, "baddbmm": baddbmm, "baddbmm.out": baddbmm}  # fmt: skip


def _softmax_group(kernels: Any, name: str) -> dict[str, Callable[..., Any]]:
    forward = getattr(kernels.softmax, name)
    backward = getattr(kernels.softmax, f"{name}_backward")

    def run(x: Tensor, dim: int, half_to_float: bool, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = forward(x, dim, torch.float32 if half_to_float else None)
        return result if out is None else into(out, result)

    return {
        f"_{name}": run,
        f"_{name}.out": run,
        f"_{name}_backward_data": backward,
    }


def _reduce_group(kernels: Any, name: str) -> dict[str, Callable[..., Any]]:
    function = getattr(kernels.reduce, name)

    def dims(x: Tensor, dim: Dims = None, keepdim: bool = False, *,
             dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:  # fmt: skip
        result: Tensor = function(x, dim, keepdim, dtype)
        return result if out is None else into(out, result.to(out.dtype))

    def whole(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        return function(x, None, False, dtype)  # type: ignore[no-any-return]

    if name == "sum":
        return {"sum": whole, "sum.dim_IntList": dims, "sum.IntList_out": dims}
    return {"mean": whole, "mean.dim": dims, "mean.out": dims}


def _norm_group(kernels: Any) -> dict[str, Callable[..., Any]]:
    norm, reduce = kernels.norm, kernels.reduce

    def layer_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None,
                   bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        result: tuple[Tensor, Tensor, Tensor] = norm.layer_norm_with_statistics(
            x, normalized_shape, weight, bias, eps
        )
        return result

    def fused_rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None,
                       eps: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
        tail = len(normalized_shape)
        flat = x if tail == 1 else x.flatten(-tail)
        scale = weight if weight is None or tail == 1 else weight.flatten()
        y = norm.rms_norm(flat, scale, eps).view(x.shape)
        small = torch.finfo(x.dtype).eps if eps is None else eps
        square = reduce.mean(flat.float().square(), -1, True)
        root = torch.rsqrt(square + small)
        return y, root.view(*x.shape[: x.dim() - tail], *([1] * tail))

    return {"native_layer_norm": layer_norm, "_fused_rms_norm": fused_rms_norm}


@functools.cache
def table() -> Table:
    """Group -> operation -> kernel; each runs torch's own where its group is not in force.

    Raises:
        RuntimeError: Triton or the kernel package is not installed.
    """
    kernels = _kernels()
    groups = {
        "matmul": _matmul_group(kernels),
        "softmax": _softmax_group(kernels, "softmax"),
        "log_softmax": _softmax_group(kernels, "log_softmax"),
        "mean": _reduce_group(kernels, "mean"),
        "sum": _reduce_group(kernels, "sum"),
        "norm": _norm_group(kernels),
        "argmax": {"argmax": kernels.argmax.argmax},
    }
    return {
        group: {name: _switched(group, name, kernel) for name, kernel in named.items()}
        for group, named in groups.items()
    }


def _switched(group: str, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    own = original(name, "CUDA")

    def call(*args: Any, **kwargs: Any) -> Any:
        first = next(x for x in args if isinstance(x, Tensor))
        if not active(group) or not first.is_floating_point():
            return own(*args, **kwargs)
        return kernel(*args, **kwargs)

    return call


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float,
              causal: bool) -> Tensor:  # fmt: skip
    """Attention with the masks that decoders make: causal, left padding, a cache with a free end.

    Other masks (a sliding window over several queries, a bias) take products and a softmax over all
    keys: independent of neighbours, though not of the number of padded keys.
    """
    kernel = _kernels().attention.attention
    if mask is None:
        whole: Tensor = kernel(q, k, v, causal=causal, scale=scale, allow_tf32=tf32())
        return whole
    found = _bounds(mask, q.shape[0], q.shape[2], k.shape[2])
    if found is None or v.shape[-1] != q.shape[-1]:
        return _general(q, k, v, mask, scale)
    start, end, plain = found
    out: Tensor = kernel(
        q, k, v, causal=True, scale=scale, key_start=start, key_end=end, allow_tf32=tf32()
    )
    if plain is None:
        return out
    # Each sequence by the kind of its own mask: a neighbour's must not choose for it.
    return torch.where(plain[:, None, None, None], out, _general(q, k, v, mask, scale))


Bounds = tuple[Tensor, Tensor, Tensor | None]
_known: list[tuple[weakref.ref[Tensor], tuple[int, ...], Bounds | None]] = []


def _bounds(mask: Tensor, batch: int, queries: int, keys: int) -> Bounds | None:
    """First key and number of keys of each sequence, and which of them have a plain mask.

    The third is None where all are plain; the whole is None for a bias or masks of each head.
    Found once a forward pass. Inside a CUDA graph's capture the kind cannot be read back and plain
    masks are taken for granted: run once before, as every capture does to warm up.
    """
    name = (batch, queries, keys, -1 if mask.is_inference() else mask._version)
    known = _known[0] if _known else None  # one look: another thread may put its own there
    if known is not None and known[0]() is mask and known[1] == name:
        return known[2]
    whole = mask[(None,) * (4 - mask.dim())][:, 0].expand(batch, queries, keys)
    seen = whole if mask.dtype == torch.bool else whole > torch.finfo(mask.dtype).min / 2
    last = seen[:, -1]
    place = torch.arange(keys, device=mask.device, dtype=torch.int32)
    end = torch.where(last, place + 1, 0).amax(-1).to(torch.int32)
    start = torch.where(seen.any(1), place, keys).amin(-1).to(torch.int32)
    found: Bounds | None = (start, end, None)
    if not (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        until = end[:, None] - torch.arange(queries - 1, -1, -1, device=mask.device)
        wanted = (place >= start[:, None, None]) & (place < until[:, :, None])
        plain = (seen == wanted).flatten(1).all(1)
        biased = mask.dtype != torch.bool and bool((seen & (whole != 0)).any())
        if biased or (mask.dim() > 2 and mask.shape[-3] > 1):
            found = None
        elif not bool(plain.all()):
            found = (start, end, plain)
    _known[:] = [(weakref.ref(mask), name, found)]
    return found


def _general(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    kernels = _kernels()
    shared = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(shared, 1).flatten(0, 1) for x in (k, v))
    scores = kernels.matmul.bmm(q.flatten(0, 1), keys.transpose(1, 2), allow_tf32=tf32())
    scores = scores.view(*q.shape[:3], -1).float() * scale
    added = mask
    if mask.dtype == torch.bool:
        added = torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -torch.inf)
    scores = scores + added
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = kernels.softmax.softmax(scores.masked_fill(blind, 0.0), -1)
    weights = weights.masked_fill(blind, 0.0).to(q.dtype)
    out = kernels.matmul.bmm(weights.flatten(0, 1), values, allow_tf32=tf32())
    return out.view(*q.shape[:3], -1)  # type: ignore[no-any-return]
