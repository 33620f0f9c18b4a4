"""What every kernel file shares: the guarded Triton import and arithmetic with a fixed order.

Two rules make the bits independent of tiles, warps and vector width:

1. Sums within a block go through :func:`tree_sum`, which names each addition. ``tl.sum`` over a
   whole axis leaves the order to the register layout, and the layout follows the alignment of
   the pointers and the number of warps.
2. Kernels that must agree with one another are compiled without implicit fusion of multiply and
   add (``enable_fp_fusion=False``); a fused operation is written as ``tl.fma``.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # A CPU-only installation: the references still work.
    triton = None
    tl = None

LANES = 1024
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class KernelUnavailable(RuntimeError):
    """The operation was asked for where no Triton kernel can run."""


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit`` where Triton is installed, else the function itself (never called)."""
    return function if triton is None else triton.jit(function)


def jit_free(*names: str) -> Callable[[Callable[..., Any]], Any]:
    """``jit`` that compiles one kernel for all values of the integer arguments ``names``."""

    def decorate(function: Callable[..., Any]) -> Any:
        return function if triton is None else triton.jit(function, do_not_specialize=list(names))

    return decorate


def require(*tensors: torch.Tensor | None) -> torch.device:
    """Check that a kernel can run on the tensors and return their common device.

    Raises:
        KernelUnavailable: no Triton, or a tensor that is not on a CUDA device (CPU tensors are
            accepted under Triton's interpreter).
        ValueError: tensors on more than one device.
        TypeError: a dtype other than bf16, fp16, fp32 and fp64.
    """
    present = [t for t in tensors if t is not None]
    device = present[0].device
    if triton is None:
        raise KernelUnavailable("triton is not installed")
    if device.type != "cuda" and not INTERPRETED:
        raise KernelUnavailable(f"the kernel needs a CUDA tensor, got one on {device}")
    for t in present:
        if t.device != device:
            raise ValueError(f"tensors on {device} and {t.device}: one device expected")
        if t.dtype not in FLOATS:
            raise TypeError(f"dtype {t.dtype} is not supported: use bf16, fp16, fp32 or fp64")
    return device


class on_device:  # noqa: N801 - reads as a statement: `with on_device(x.device):`
    """Make the tensors' device current, so that a launch never lands on another GPU."""

    __slots__ = ("_guard",)

    def __init__(self, device: torch.device) -> None:
        self._guard = torch.cuda.device(device) if device.type == "cuda" else None

    def __enter__(self) -> None:
        if self._guard is not None:
            self._guard.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._guard is not None:
            self._guard.__exit__(*error)


@functools.cache
def processors(device: torch.device) -> int:
    """Number of multiprocessors of this very device (132 under the interpreter)."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def hopper(device: torch.device) -> bool:
    """Whether the device has the tensor copy engine (compute capability 9 or more)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9


_compiled: dict[Any, Any] = {}


def start(kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...],
          constants: dict[str, Any], options: dict[str, Any]) -> Any:  # fmt: skip
    """Launch ``kernel[grid](*args, **constants, **options)`` at a fraction of the host time.

    Triton's own launcher inspects and binds every argument again; this one keeps the compiled
    kernel under the facts that Triton specialises on: types, 16-byte alignment, integers that are
    1, multiples of 16 or beyond 32 bits. ``constants`` come last in the kernel's signature, in
    order. The current device must be the tensors'. Returns the compiled kernel (None under the
    interpreter).
    """
    key = (id(kernel), args[0].device, *constants.values(), *options.values(), *map(_fact, args))
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = kernel[grid](*args, **constants, **options)
        if compiled is not None:
            _compiled[key] = compiled
    else:
        compiled[grid](*args, *constants.values())
    return compiled


def _fact(value: Any) -> Any:
    """What Triton specialises on in one argument; every answer distinct (mind that True == 1)."""
    if type(value) is int:
        if value == 1:
            return "one"
        size = "i32" if -(2**31) <= value < 2**31 else "i64"
        return (size, "16") if value & 15 == 0 else size
    if type(value) is float:
        return "float"
    return value.dtype, value.data_ptr() & 15


def row_warps(x: torch.Tensor, elements: int) -> int:
    """Warps of a row kernel: 1,024 lanes of 16-byte loads at most, so that the upper levels of
    :func:`tree_sum` stay within a thread. Speed only; the sum's order does not depend on it."""
    lane = 16 // x.element_size()
    return max(1, min(elements, LANES) // (32 * lane)) if lane > 2 else 8


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n`` (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()


@jit
def tree_sum(x):
    """Sum the last axis of a (R, B) block in one fixed order; B is a power of two.

    Above 1,024 columns, column j is first added to column j + B / 2; below, neighbours 2j and
    2j + 1 are added until one is left.
    """
    for _ in tl.static_range(32):
        if x.shape[1] > 1024:
            x = tl.sum(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), axis=1)
    for _ in tl.static_range(10):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)), axis=2)
    return tl.reshape(x, (x.shape[0],))


@jit
def tree_sum_columns(x):
    """Sum the first axis of a (B, C) block, B at most 1,024, in the order of `tree_sum`."""
    for _ in tl.static_range(10):
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, (x.shape[0] // 2, 2, x.shape[1])), axis=1)
    return tl.reshape(x, (x.shape[1],))


@jit
def divide(a, b):
    """a / b rounded to nearest; plain ``/`` is only approximate in FP32. Same shapes."""
    if a.dtype == tl.float64:
        c = a / b
    else:
        c = tl.math.div_rn(a, b)
    return c


@jit
def square_root(a):
    """Square root rounded to nearest."""
    if a.dtype == tl.float64:
        c = tl.sqrt(a)
    else:
        c = tl.math.sqrt_rn(a)
    return c


@jit
def exact_exp(x):
    """e**x to about one unit in the last place; float32 or float64."""
    if x.dtype == tl.float64:
        y = tl.exp(x)
    else:
        y = _exp32(x)
    return y


@jit
def _exp32(x):
    # x = n ln 2 + r with n an integer, so that the fast base-2 exponential only sees a small r.
    n = tl.floor(tl.fma(x, tl.full(x.shape, 1.4426950408889634, tl.float32), 0.5))
    n = tl.minimum(tl.maximum(n, -252.0), 252.0)
    # ln 2 in two parts: the first has trailing zeros, so n times it is exact.
    r = tl.fma(n, tl.full(x.shape, -0.693145751953125, tl.float32), x)
    r = tl.fma(n, tl.full(x.shape, -1.428606820309417e-06, tl.float32), r)
    half = tl.floor(n * 0.5)
    # Two factors: 2**n alone would leave the range before the product does.
    y = tl.exp2(r * 1.4426950408889634) * tl.exp2(half) * tl.exp2(n - half)
    y = tl.where(x == float("-inf"), 0.0, y)
    y = tl.where(x == float("inf"), float("inf"), y)
    return tl.where(x != x, x, y)


@jit
def exact_log(x):
    """Natural logarithm to about one unit in the last place; float32 (normal, > 0) or float64."""
    if x.dtype == tl.float64:
        y = tl.log(x)
    else:
        y = _log32(x)
    return y


@jit
def _log32(x):
    # With x = 2**k (1 + f) and s = f / (2 + f): log(1 + f) = 2 artanh(s) = f - s (f - R(s)), where
    # R(s) = 2 (s**2 / 3 + s**4 / 5 + s**6 / 7 + s**8 / 9).
    bits = x.to(tl.int32, bitcast=True)
    # 0x3F3504F3 is sqrt(1/2): the mantissa lands in [sqrt(1/2), sqrt(2)).
    k = (bits - 0x3F3504F3) >> 23
    f = (bits - (k << 23)).to(tl.float32, bitcast=True) - 1.0
    s = divide(f, f + 2.0)
    z = s * s
    tail = 0.2857142984867096 + z * 0.2222222238779068
    series = z * (0.6666666865348816 + z * (0.4 + z * tail))
    log1p = f - s * (f - series)
    kf = k.to(tl.float32)
    y = (log1p + kf * 1.428606820309417e-06) + kf * 0.693145751953125
    return tl.where((x == x) & (x < float("inf")), y, x)


@jit
def power_of_two(e):
    """2**e for integral e in [-inf, 127], 0 below -126, without rounding; float32."""
    biased = tl.maximum(e, -127.0).to(tl.int32) + 127
    return (biased << 23).to(tl.float32, bitcast=True)


@jit
def far_sum(x):
    """Sum the last axis of a (R, B) block: column j is added to column j + B / 2, and so on."""
    for _ in tl.static_range(12):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), axis=1)
    return tl.reshape(x, (x.shape[0],))
