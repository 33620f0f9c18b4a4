"""What every kernel file shares: the guarded Triton import, checks, and a launcher."""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
    from triton.runtime.errors import OutOfResources
except ImportError:  # A CPU-only installation: the references still work.
    triton = None
    tl = None
    OutOfResources = MemoryError  # what nothing here raises without Triton

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


def differentiable(*tensors: torch.Tensor | None) -> bool:
    """Whether a call should record its own backward.

    Not below the dispatcher's autograd layer: where an aten operation is replaced, torch has
    recorded that operation's backward already, and the inputs still say that they need one.
    """
    if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad for t in tensors):
        return False
    key = torch._C.DispatchKey.AutogradFunctionality
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(key)


class on_device:
    """Make the tensors' device current, so that a launch never lands on another GPU."""

    __slots__ = ("_guard",)

    def __init__(self, device: torch.device) -> None:
        self._guard = torch.cuda.device(device) if device.type == "cuda" else None

    def __enter__(self) -> None:
        if self._guard is not None:
            self._guard.__enter__()  # type: ignore[no-untyped-call]

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


def layout(x: torch.Tensor | None) -> Any:
    """All a launch depends on but the address: sizes, strides, type, device, alignment."""
    return None if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15)


class Ready:
    """Launches whose every choice is made, so that the next call laid out alike only starts one.

    At decode a model makes the same few hundred calls every step, and host time is the cost.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Callable[..., torch.Tensor]] = {}
        self.get = self._known.get

    def put(self, key: Any, like: torch.Tensor, shape: tuple[int, ...],
            again: Callable[..., None]) -> None:  # fmt: skip
        """Keep ``again(out, *tensors)``; ``get(key)(*tensors)`` makes out and runs it."""
        dtype, device, index = like.dtype, like.device, like.device.index

        def ready(*tensors: torch.Tensor | None) -> torch.Tensor:
            out = torch.empty(shape, dtype=dtype, device=device)
            if torch.cuda.current_device() == index:
                again(out, *tensors)
            else:
                with on_device(device):
                    again(out, *tensors)
            return out

        if len(self._known) > 8192:  # Ever new numbers of rows: do not grow without end.
            self._known.clear()
        self._known[key] = ready


def row_warps(x: torch.Tensor, elements: int) -> int:
    """Warps of a row kernel: 1,024 lanes of 16-byte loads at most.

    The upper levels of :func:`arithmetic.tree_sum` then stay within a thread. This is about speed:
    the order of the sum does not depend on it.
    """
    lane = 16 // x.element_size()
    return max(1, min(elements, LANES) // (32 * lane)) if lane > 2 else 8


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n`` (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()
