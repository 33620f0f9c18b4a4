"""Second copies of a model's weights in the form in which the CPU multiplies few rows fastest.

Small decode batches take as long as the weights take to be read and brought into the library's own
layout; a copy that lies in that layout saves the second part. 16-bit weights are kept as oneDNN
packs them, FP32 ones as MKL packs them for one number of rows; so are 16-bit ones that ``blocks``
multiplies as FP32, in twice their bytes. FP64 has no such form and is kept as (K, N). A block of
rows times the copy is used only in those sizes whose bits a probe found equal to those of
``blocks`` (MKL, AVX-512, FP32: blocks of 2, 4 and 8 rows, which without the copy have other bits;
oneDNN, bf16: of 2 rows).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from .bits import same_bits
from .blocks import (
    BASE,
    Shape,
    cancelling,
    in_blocks,
    proven_sizes,
    schedule,
    sizes_to_try,
    unprobed,
)
from .cpu_units import widened
from .original import original

# Bytes of copies that all layers of one model may take together.
LIMIT = 2 << 30
# Rows that oneDNN is told to expect; it only chooses the layout of the copy.
_EXPECTED_ROWS = 16
# Rows that are multiplied in one block: its time is that of reading the weights, whatever its size.
_FEW = 8
_ALIGNMENT = 64

Multiply = Callable[[Tensor], Tensor]
_sizes: dict[Shape, tuple[int, ...]] = {}
_lock = threading.Lock()


class Packed:
    """A copy of weights (N, K): rows (M, K) -> (M, N).

    Args:
        multiply: takes a block (size, K) to (size, N).
        sizes: those that blocks may have, rising.
        zeros: (largest size, K), what blocks are filled up with; rows of another type are
            multiplied in this one, and the result rounded to theirs.
    """

    def __init__(self, multiply: Multiply, sizes: tuple[int, ...], zeros: Tensor) -> None:
        self.multiply, self.sizes, self.zeros = multiply, sizes, zeros
        self._plans: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.dtype is not self.zeros.dtype:
            return self(rows.to(self.zeros.dtype)).to(rows.dtype)
        count = rows.shape[0]
        plan = self._plans.get(count)
        if plan is None:
            plan = self._plans[count] = _planned(count, self.sizes)
        if len(plan) == 1:
            return self._block(rows, count, plan[0][1])
        return torch.cat(
            [self._block(rows[at : at + size], min(size, count - at), size) for at, size in plan]
        )

    def _block(self, rows: Tensor, count: int, size: int) -> Tensor:
        if count < size:
            return self.multiply(torch.cat((rows, self.zeros[: size - count])))[:count]
        if not rows.is_contiguous() or rows.data_ptr() % _ALIGNMENT:
            rows = rows.clone(memory_format=torch.contiguous_format)
        return self.multiply(rows)


class Forms:
    """FP32 products with weights (N, K), of few rows through MKL's packed form.

    A form serves one number of rows, so one is kept: a decode step asks for one number again and
    again. More rows are multiplied as ``blocks`` does it.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        # What MKL is shown as the weights: it looks at their shape alone.
        self._shown = torch.zeros(1, 1).expand(weight.shape)
        self._form: tuple[int, Tensor] | None = None

    def __call__(self, block: Tensor) -> Tensor:
        rows = block.shape[0]
        if not 1 < rows <= _FEW:
            return original("mm")(block, self.weight.to(block.dtype).t())  # type: ignore[no-any-return]
        form = self._form
        if form is None or form[0] != rows:
            wide = self.weight.to(block.dtype)
            form = self._form = rows, torch.ops.mkl._mkl_reorder_linear_weight(wide, rows)
        result: Tensor = torch.ops.mkl._mkl_linear(block, form[1], self._shown, None, rows)
        return result


def _planned(count: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Blocks as ``schedule`` gives them; small ones only for rows that fit in one."""
    if count <= _FEW and count <= sizes[-1]:
        return [(0, next(size for size in sizes if size >= count))]
    return schedule(count, tuple(size for size in sizes if size > _FEW) or sizes)


class Packing:
    """The copies of one model's weights, each made when its layer is first called."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: dict[int, tuple[Tensor, tuple[int, int, int], Packed | None]] = {}

    def find(self, weight: Tensor) -> Packed | None:
        """The copy, made again after the weights changed; None where there is none."""
        if weight.is_inference():
            return None  # changes of it are not counted
        state = (weight._version, weight.data_ptr(), torch.get_num_threads())
        known = self._known.get(id(weight))
        if known is not None and known[0] is weight and known[1] == state:
            return known[2]
        if known is not None and known[2] is not None:
            self.bytes -= _copied(known[0])
        packed = None
        if self.bytes + _copied(weight) <= LIMIT:
            packed = pack(weight.detach())
            self.bytes += 0 if packed is None else _copied(weight)
        self._known[id(weight)] = weight, state, packed
        return packed


def pack(weight: Tensor) -> Packed | None:
    """A copy of weights (N, K), or None where no block of it is proven."""
    if not weight.is_contiguous() or min(weight.shape) < 2 or not weight.is_cpu:
        return None
    n, k = weight.shape
    dtype = torch.float32 if widened(weight.dtype) else weight.dtype
    sizes = packed_sizes(Shape(n, k, dtype, "rows", False, torch.get_num_threads()))
    if not sizes:
        return None
    return Packed(_multiply(weight), sizes, _zeros(sizes[-1], k, dtype))


def _copied(weight: Tensor) -> int:
    """Bytes that the copy takes."""
    return weight.numel() * 4 if widened(weight.dtype) else weight.nbytes


@functools.cache
def _zeros(rows: int, k: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(rows, k, dtype=dtype)


def packed_sizes(shape: Shape) -> tuple[int, ...]:
    """Block sizes of the copy whose bits equal those of ``blocks``, rising; empty: use no copy."""
    plain = proven_sizes(shape)
    with _lock:
        found = _sizes.get(shape)
        if found is None:
            found = _probe(shape)
            if not plain or not found or found[0] > plain[0]:
                found = ()
            _sizes[shape] = found
    return found


def described() -> dict[str, dict[str, list[int]]]:
    """What this CPU's probes found so far, by type, shape (N x K) and number of threads.

    Values: "blocks", the sizes without a copy, and "copy", those with one (empty: none is used). A
    16-bit type that is multiplied as FP32 stands under float32.
    """
    with _lock:
        found = sorted(_sizes.items(), key=str)
    return {
        f"{shape.dtype} {shape.n}x{shape.k} threads={shape.threads}".removeprefix("torch."): {
            "blocks": list(proven_sizes(shape)),
            "copy": list(sizes),
        }
        for shape, sizes in found
    }


def _probe(shape: Shape) -> tuple[int, ...]:
    if unprobed(shape) or not _has_form(shape.dtype):
        return ()
    sizes = sizes_to_try(shape)
    rows, weights = cancelling(sizes[-1], shape)
    multiply = _multiply(weights)
    wanted = in_blocks(weights, rows, BASE, False)

    def product(size: int) -> Tensor:
        return torch.cat([multiply(rows[i : i + size]) for i in range(0, len(rows), size)])

    return tuple(size for size in sizes if same_bits(product(size), wanted))


def _has_form(dtype: torch.dtype) -> bool:
    if dtype in (torch.float32, torch.float64):
        return True
    known = {
        torch.bfloat16: "_is_mkldnn_bf16_supported",
        torch.float16: "_is_mkldnn_fp16_supported",
    }
    ask = getattr(torch.ops.mkldnn, known.get(dtype, ""), None)
    return bool(ask and ask() and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


def _multiply(weight: Tensor) -> Multiply:
    if _packs_fp32() and (weight.dtype == torch.float32 or widened(weight.dtype)):
        return Forms(weight)
    if weight.dtype in (torch.float32, torch.float64) or widened(weight.dtype):
        wide = weight.float() if widened(weight.dtype) else weight
        right, mm = wide.t().contiguous(), original("mm")
        return lambda block: mm(block, right)
    form = torch.ops.mkldnn._reorder_linear_weight(weight, _EXPECTED_ROWS)
    linear = torch.ops.mkldnn._linear_pointwise.default
    return lambda block: linear(block, form, None, "none", [], "")


@functools.cache
def _packs_fp32() -> bool:
    return bool(torch.backends.mkl.is_available()) and hasattr(torch.ops.mkl, "_mkl_linear")  # type: ignore[no-untyped-call]
