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

from .matmul_kernels import stream_kernel, tile_kernel
from .matmul_plan import Plan, generic, plan, slices
from .support import cdiv, hopper, on_device, processors, require, start, tl

POOL_INTS = 1 << 18
_counters: dict[tuple[torch.device, int], torch.Tensor] = {}
_captured: dict[torch.device, tuple[torch.Tensor, int]] = {}
_kept: list[torch.Tensor] = []


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
        key = (_layout(a), _layout(b), _layout(bias), a.device, alpha, beta, allow_tf32)
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
    """All that a launch depends on but the address: sizes, strides, type, 16-byte alignment."""
    return None if x is None else (x.shape, x.stride(), x.dtype, x.data_ptr() & 15)


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
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    ):
        result: torch.Tensor = _Linear.apply(x, weight, bias, allow_tf32)  # type: ignore[no-untyped-call]
        return result
    return _linear(x, weight, bias, allow_tf32)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            allow_tf32: bool) -> torch.Tensor:  # fmt: skip
    key = (_layout(x), _layout(weight), _layout(bias), x.device, allow_tf32, "linear")
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


Again = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None]


def _product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float,
             out: torch.Tensor | None, allow_tf32: bool, count: tuple[int, int],
             how: Plan | None) -> tuple[torch.Tensor, Again | None]:  # fmt: skip
    """The checked product of 3-D operands, and how to start it again on others laid out alike."""
    batch, m, k = a.shape
    c = None if beta == 0 else c
    device = require(a, b, c, out)
    if a.dtype != b.dtype or (c is not None and c.dtype != a.dtype):
        raise TypeError(f"matmul: dtypes differ: {a.dtype}, {b.dtype}, {c if c is None else c.dtype}")
    o = _output(out, a, b, (batch, m, b.shape[2]))
    again: Again | None = None
    if o.numel() and k == 0:
        o.zero_() if c is None else torch.mul(c, beta, out=o)
    elif o.numel():
        with on_device(device):
            if a.dtype == torch.float64 and (alpha != 1 or c is not None):
                # The kernel's scalars are FP32; pointwise operations are invariant by nature.
                _launch(a, b, o, None, 1.0, 1.0, allow_tf32, count, how)
                o.mul_(alpha)
                if c is not None:
                    o.add_(c, alpha=beta)
            else:
                again = _launch(a, b, o, c, alpha, beta, allow_tf32, count, how)
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


def _aligned(x: torch.Tensor, last: int) -> bool:
    """Whether the copy engine can read the 2-D tensor whose dimension ``last`` is contiguous."""
    other = x.stride(1 - last) * x.element_size()
    return x.stride(last) == 1 and other % 16 == 0 and other > 0 and x.data_ptr() % 16 == 0


def _launch(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor | None,
            alpha: float, beta: float, allow_tf32: bool, count: tuple[int, int],
            how: Plan | None) -> Again | None:  # fmt: skip
    """Choose a plan if none is given, and start its kernel."""
    (batch, m, k), n = a.shape, b.shape[2]
    programs = processors(a.device)
    if how is None:
        bits = 8 * a.element_size()
        tma = batch == 1 and hopper(a.device) and bits == 16
        tma = tma and (_aligned(a[0], 1) or _aligned(a[0], 0))
        tma = tma and (_aligned(b[0], 1) or _aligned(b[0], 0))
        if batch == 1 and count == slices(n, k):
            how = plan(m, n, k, bits, tma, programs)
        else:
            how = generic(m, n, bits, count[0], programs)
    if how.kernel == "stream":
        return _stream(a[0], b[0], o[0], None if c is None else c[0], alpha, beta, count, how, programs)
    return _tile(a, b, o, c, alpha, beta, allow_tf32, count, how)


def scratch(x: torch.Tensor, tiles: int, partial: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP32 workspace of ``partial`` elements, and ``tiles`` counters that read zero.

    Every kernel leaves its counters at zero. A stream has its own, because two streams may run at
    once; a product captured in a CUDA graph has its own for as long as the process lives.
    """
    work = torch.empty(partial, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32,
                       device=x.device)  # fmt: skip
    if x.device.type != "cuda" or tiles > POOL_INTS:
        return work, torch.zeros(tiles, dtype=torch.int32, device=x.device)
    if torch.cuda.is_current_stream_capturing():
        return work, _captured_counters(x.device, tiles)
    key = (x.device, torch.cuda.current_stream(x.device).cuda_stream)
    if key not in _counters:
        _counters[key] = torch.zeros(POOL_INTS, dtype=torch.int32, device=x.device)
    if x.device not in _captured or _captured[x.device][1] > POOL_INTS // 2:
        _captured[x.device] = (torch.zeros(POOL_INTS, dtype=torch.int32, device=x.device), 0)
        _kept.append(_captured[x.device][0])
    return work, _counters[key]


def _captured_counters(device: torch.device, tiles: int) -> torch.Tensor:
    """A piece of the pool that no other product uses; without one, cleared by the graph itself."""
    pool, used = _captured.get(device, (None, POOL_INTS))
    if pool is None or used + tiles > POOL_INTS:
        return torch.zeros(tiles, dtype=torch.int32, device=device)
    _captured[device] = (pool, used + 4 * cdiv(tiles, 4))  # Each piece starts on 16 bytes.
    return pool[used : used + tiles]


def _tile(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor | None, alpha: float,
          beta: float, allow_tf32: bool, count: tuple[int, int], how: Plan) -> Again | None:  # fmt: skip
    (batch, m, k), n = a.shape, b.shape[2]
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    parallel = how.mode == "parallel"
    reach = max((how.bm - 1) * abs(a.stride(1)) + (how.bk - 1) * abs(a.stride(2)),
                (how.bn - 1) * abs(b.stride(2)) + (how.bk - 1) * abs(b.stride(1)))  # fmt: skip
    blocked = a.element_size() > 2 and not (allow_tf32 and a.dtype == torch.float32)
    step = 2 * how.bk if blocked else how.bk
    fixed = (m, n, k, count[1], count[0], float(alpha), float(beta),
             *_strides(a), *_strides(b), *_strides(o), *_strides(o if c is None else c))  # fmt: skip
    constants = dict(
        BM=how.bm, BN=how.bn, BK=how.bk, SWAP=how.swap, MODE=how.mode,
        EVEN_K=k % step == 0 and (count[0] == 1 or count[1] % step == 0), WIDE=reach >= 2**31 - 1, HAS_C=c is not None, PLAIN=alpha == 1 and beta == 1,
        PRECISION="tf32" if allow_tf32 else "ieee",
        ACC=tl.float64 if a.dtype == torch.float64 else tl.float32,
        BLOCKED=blocked)  # fmt: skip
    options = dict(num_warps=how.warps, num_stages=how.stages)
    for first in range(0, batch, 65535):
        part = slice(first, first + 65535)
        x, y, z = (a, b, o) if batch == 1 else (a[part], b[part], o[part])
        w = z if c is None else c[part]
        work, counters = scratch(a, tiles, count[0] * m * n) if parallel else (z, z)
        grid = (tiles, count[0] if parallel else 1, x.shape[0])
        compiled = start(tile_kernel, grid, (x, y, z, w, work, counters, *fixed), constants, options)
    if compiled is None or batch > 1:
        return None
    run, rest = compiled[grid], (*fixed, *constants.values())

    def again(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor | None) -> None:
        work, counters = scratch(a, tiles, count[0] * m * n) if parallel else (o, o)
        run(a, b, o, o if c is None else c, work, counters, *rest)

    return again


def _strides(x: torch.Tensor) -> tuple[int, int, int]:
    """Strides of a 3-D tensor; that of a batch of one is 0, so that it decides nothing."""
    first, second, third = x.stride()
    return (first if x.shape[0] > 1 else 0, second, third)


def _stream(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor | None,
            alpha: float, beta: float, count: tuple[int, int], how: Plan,
            programs: int) -> Again | None:  # fmt: skip
    from triton.tools.tensor_descriptor import TensorDescriptor as Descriptor

    (m, k), n = a.shape, b.shape[1]
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    units = tiles * count[0] if how.mode == "parallel" else tiles
    programs = min(programs * how.per_sm, units)
    a_flip, b_flip = not _aligned(a, 1), not _aligned(b, 1)
    a_box = [how.bk, how.bm] if a_flip else [how.bm, how.bk]
    b_box = [how.bn, how.bk] if b_flip else [how.bk, how.bn]
    a_size, a_step = ([k, m], [a.stride(1), 1]) if a_flip else ([m, k], [a.stride(0), 1])
    b_size, b_step = ([n, k], [b.stride(1), 1]) if b_flip else ([k, n], [b.stride(0), 1])
    o_step, out_tma = [o.stride(0), 1], _aligned(o, 1)
    constants = dict(BM=how.bm, BN=how.bn, BK=how.bk, MODE=how.mode, A_K_MAJOR=a_flip,
                     B_N_MAJOR=not b_flip, OUT_TMA=out_tma, HAS_C=c is not None,
                     PLAIN=alpha == 1 and beta == 1)  # fmt: skip
    fixed = (m, n, k, count[1], count[0], float(alpha), float(beta), o.stride(0),
             *(o if c is None else c).stride())  # fmt: skip
    options = dict(num_warps=how.warps, num_stages=how.stages)

    def launch(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor | None) -> Any:
        work, counters = o, o
        if how.mode == "parallel":
            work, counters = scratch(a, tiles, count[0] * m * n)
        elif how.mode == "spill":
            work, _ = scratch(a, 1, programs * how.bm * how.bn)
        a_desc = Descriptor(a, a_size, a_step, a_box)
        b_desc = Descriptor(b, b_size, b_step, b_box)
        o_desc = Descriptor(o, [m, n], o_step, [how.bm, how.bn]) if out_tma else a_desc
        args = (a_desc, b_desc, o_desc, o, o if c is None else c, work, counters, *fixed)
        return stream_kernel[(programs, 1, 1)](*args, **constants, **options)

    compiled = launch(a, b, o, c)
    return None if compiled is None else launch
