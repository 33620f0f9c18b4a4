"""Starting the attention kernels: constants, workspaces, and launches that can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from . import attention_hopper
from . import attention_plan as plan
from .attention_kernels import attention_kernel, merge_kernel
from .matmul_launch import scratch
from .support import OutOfResources, cdiv, hopper, next_power_of_2, processors, start, tl

Lengths = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Offsets of queries and of keys, first keys and numbers of keys of the sequences."""
Again = Callable[..., None]
"""Start the same launch again on (out, q, k, v, *lengths) laid out alike."""


class Call(NamedTuple):
    """What is asked for, apart from the tensors."""

    max_q: int
    max_k: int
    sequences: int
    causal: bool
    scale: float
    window: int | None
    tf32: bool
    parallel: bool | None


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lengths: Lengths,
           call: Call) -> Again | None:  # fmt: skip
    """Start the kernels for (B, H, L, D) operands; how to do so again, where that can be kept."""
    heads, size = k.shape[1], q.element_size()
    rows, padded = call.max_q * (q.shape[1] // heads), max(16, next_power_of_2(q.shape[3]))
    bm, warps, stages, engine = plan.shape_of(rows, padded, size, call.tf32)
    engine = engine if hopper(q.device) else "loads"
    kinds = _kinds(lengths, call)
    if engine == "warps":
        if _specialised(q, k, v, o, lengths, call, kinds, stages):
            return None
        bm, warps, stages, engine = plan.copied_shape(padded)
    tiles = cdiv(rows, bm)
    programs = tiles * heads * call.sequences
    how = plan.share(cdiv(call.max_k, plan.SPLIT), programs, processors(q.device),
                     (bm, warps, stages), call.parallel)  # fmt: skip
    tma = engine != "loads" and _copyable(k) and _copyable(v)
    tile = dict(D=q.shape[3], DP=padded, DOT=_DOT[q.dtype], BM=bm)
    main = _main(q, k, v, o, call, how, tile, kinds, (tiles, heads), tma)
    if tma:
        given = (o if t is None else t for t in lengths)
        block = plan.block_of(padded, size)
        main(q, k, v, o, o, o, *given, *(_descriptor(t, block, padded) for t in (k, v)))
        return None
    adding = _adding(q, o, call, how, tile, kinds, (tiles, heads))
    space = programs * how.parts * how.per * bm * (padded + 2)

    def again(o: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
              *lengths: torch.Tensor | None) -> None:  # fmt: skip
        given = [o if t is None else t for t in lengths]
        work, counters = scratch(q, programs, space) if how.parallel else (o, o)
        main(q, k, v, o, work, counters, *given, k, v)
        if how.later:
            adding(o, work, *given)

    again(o, q, k, v, *lengths)
    return again if main.run is not None else None


def _kinds(lengths: Lengths, call: Call) -> dict[str, Any]:
    """The constants that say what a sequence and its keys are."""
    cu_q, _, first, end = lengths
    return dict(SPLIT=plan.SPLIT, CAUSAL=call.causal, WINDOW=call.window is not None,
                VARLEN=cu_q is not None, START=first is not None, END=end is not None)  # fmt: skip


def _specialised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
                 lengths: Lengths, call: Call, kinds: dict[str, Any], stages: int,
                 ) -> bool:  # fmt: skip
    """Start the Hopper kernel, if these operands suit it."""
    width = q.shape[3]
    if width not in (64, 128) or call.window is not None or call.parallel:
        return False
    given = tuple(o if t is None else t for t in lengths)
    block = plan.block_of(max(16, next_power_of_2(width)), q.element_size())
    sizes = call.max_q, call.max_k, call.sequences
    return attention_hopper.prefill(
        q, k, v, o, given, kinds, *sizes, _factor(call), block, stages
    )  # fmt: skip


def _factor(call: Call) -> float:
    """Scale of the scores in the base-2 domain."""
    return call.scale * 1.4426950408889634


def _main(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, call: Call,
          how: plan.Share, tile: dict[str, Any], kinds: dict[str, Any], grid: tuple[int, int],
          tma: bool) -> Kernel:  # fmt: skip
    """``attention_kernel`` with all its arguments but the tensors."""
    group = q.shape[1] // k.shape[1]
    strides = (stride for t in (q, k, v, o) for stride in t.stride()[:3])
    numbers = (call.max_q, call.max_k, how.parts, how.per, call.window or 0, _factor(call),
               *strides, group)  # fmt: skip
    constants = dict(
        **tile,
        BN=plan.block_of(tile["DP"], q.element_size()),
        **kinds,
        PARALLEL=how.parallel,
        LATER=how.later,
        PR=min(tile["BM"], next_power_of_2(call.max_q * group)),
        AHEAD=plan.AHEAD,
        TMA=tma,
        PRECISION="tf32" if call.tf32 else "ieee",
    )
    options = dict(num_warps=how.warps, num_stages=how.stages, enable_fp_fusion=False)
    return Kernel(
        attention_kernel, (*grid, call.sequences * how.parts), numbers, constants, options
    )


def _adding(q: torch.Tensor, o: torch.Tensor, call: Call, how: plan.Share, tile: dict[str, Any],
            kinds: dict[str, Any], grid: tuple[int, int]) -> Kernel:  # fmt: skip
    """``merge_kernel`` with all its arguments but the tensors."""
    (tiles, heads), padded = grid, tile["DP"]
    group, columns = q.shape[1] // heads, min(padded, 32)
    numbers = (call.max_q, call.max_k, how.parts * how.per, tiles, call.window or 0,
               *o.stride()[:3], group)  # fmt: skip
    return Kernel(
        merge_kernel,
        (call.max_q * group * (padded // columns), heads, call.sequences),
        numbers,
        dict(**tile, **kinds, DC=columns, AHEAD=32),
        dict(num_warps=1, enable_fp_fusion=False),
    )


class Kernel:
    """A kernel with all its arguments but the tensors; the second call only starts it."""

    def __init__(self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...],
                 constants: dict[str, Any], options: dict[str, Any]) -> None:  # fmt: skip
        self.kernel, self.grid, self.numbers = kernel, grid, numbers
        self.constants, self.options = constants, options
        self.run: Any = None
        self.rest = (*numbers, *constants.values())

    def __call__(self, *tensors: torch.Tensor) -> None:
        if self.run is not None:
            self.run(*tensors, *self.rest)
            return
        args = (*tensors, *self.numbers)
        compiled = None
        while compiled is None:
            try:
                if self.constants.get("TMA"):
                    self.kernel[self.grid](*args, **self.constants, **self.options)
                    return
                compiled = start(self.kernel, self.grid, args, self.constants, self.options)
                if compiled is None:  # the interpreter
                    return
            except OutOfResources:
                # One stage less: a matter of memory, not of bits.
                if self.options.get("num_stages", 1) == 1:
                    raise
                self.options["num_stages"] -= 1
        self.run = compiled[self.grid]


def _copyable(x: torch.Tensor) -> bool:
    """Whether the tensor copy engine can read x (B, H, L, D)."""
    size = x.element_size()
    steps = [x.stride(i) * size for i in range(3)]
    return x.data_ptr() % 16 == 0 and all(0 < s < 2**40 and s % 16 == 0 for s in steps)


def _descriptor(x: torch.Tensor, block: int, padded: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, block, padded])


_DOT: dict[torch.dtype, Any] = {} if tl is None else {
    torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32,
}  # fmt: skip
