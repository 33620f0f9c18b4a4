"""Starting the matmul kernels: workspaces, descriptors, and launches that can be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .matmul_kernels import stream_kernel, tile_kernel
from .matmul_plan import Plan, generic, plan, slices
from .support import OutOfResources, cdiv, hopper, processors, start, tl

Again = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], None]
"""Start the same launch again on (a, b, out, c) laid out alike."""

POOL_INTS = 1 << 18
_counters: dict[tuple[torch.device, int], torch.Tensor] = {}
_captured: dict[torch.device, tuple[torch.Tensor, int]] = {}
_kept: list[torch.Tensor] = []
_lock = threading.Lock()


def _aligned(x: torch.Tensor, last: int) -> bool:
    """Whether the copy engine can read the 2-D tensor whose dimension ``last`` is contiguous."""
    other = x.stride(1 - last) * x.element_size()
    return x.stride(last) == 1 and other % 16 == 0 and other > 0 and x.data_ptr() % 16 == 0


def launch(a: torch.Tensor, b: torch.Tensor, o: torch.Tensor, c: torch.Tensor | None,
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
            how = plan(m, n, k, bits, tma, programs, allow_tf32)
        else:
            how = generic(m, n, bits, count[0], programs, allow_tf32)
    wanted = (how, a.dtype, o.dtype, c is None, _facts(a), _facts(b), _facts(o))
    plans = fitting(_fits.get(wanted, how), n, 8 * a.element_size(), count[0], programs, allow_tf32)
    for smaller in plans:
        try:
            if smaller.kernel == "stream":
                bias = None if c is None else c[0]
                again = _stream(a[0], b[0], o[0], bias, alpha, beta, count, smaller, programs)
            else:
                again = _tile(a, b, o, c, alpha, beta, allow_tf32, count, smaller)
        except OutOfResources:
            continue
        if smaller != how:
            _fits[wanted] = smaller
        return again
    raise RuntimeError(f"matmul: no plan for {tuple(a.shape)} by {tuple(b.shape)} fits this GPU")


_fits: dict[Any, Plan] = {}
"""What to run in place of a plan that does not fit the processor's shared memory."""


def _facts(x: torch.Tensor) -> tuple[bool, bool]:
    """Which dimensions of x (B, rows, columns) are contiguous; a tile's memory follows it."""
    return x.stride(1) == 1, x.stride(2) == 1


def fitting(how: Plan, n: int, bits: int, count: int, programs: int,
            tf32: bool = False) -> Iterator[Plan]:  # fmt: skip
    """The plan, then ones that take less memory; none of them changes a bit.

    Fewer stages first, then the plain kernel. ``n`` and what follows it as in
    ``matmul_plan.generic``.
    """
    for stages in range(how.stages, 0, -1):
        yield how._replace(stages=stages)
    for rows in (64, 1):
        plain = generic(rows, n, bits, count, programs, tf32)
        yield plain
        yield plain._replace(stages=1)


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
    with _lock:
        pool, used = _captured.get(device, (None, POOL_INTS))
        if pool is not None and used + tiles <= POOL_INTS:
            _captured[device] = (pool, used + 4 * cdiv(tiles, 4))  # Each piece on 16 bytes.
            return pool[used : used + tiles]
    return torch.zeros(tiles, dtype=torch.int32, device=device)


def _tile(
    a: torch.Tensor,
    b: torch.Tensor,
    o: torch.Tensor,
    c: torch.Tensor | None,
    alpha: float,
    beta: float,
    allow_tf32: bool,
    count: tuple[int, int],
    how: Plan,
) -> Again | None:
    (batch, m, k), n = a.shape, b.shape[2]
    tiles = cdiv(m, how.bm) * cdiv(n, how.bn)
    parallel = how.mode == "parallel"
    reach = max((how.bm - 1) * abs(a.stride(1)) + (how.bk - 1) * abs(a.stride(2)),
                (how.bn - 1) * abs(b.stride(2)) + (how.bk - 1) * abs(b.stride(1)))  # fmt: skip
    blocked = a.element_size() > 2 and not (allow_tf32 and a.dtype == torch.float32)
    step = 2 * how.bk if blocked else how.bk
    fixed = (
        m,
        n,
        k,
        count[1],
        count[0],
        float(alpha),
        float(beta),
        *_strides(a),
        *_strides(b),
        *_strides(o),
        *_strides(o if c is None else c),
    )
    constants = dict(
        BM=how.bm,
        BN=how.bn,
        BK=how.bk,
        SWAP=how.swap,
        MODE=how.mode,
        EVEN_K=k % step == 0 and (count[0] == 1 or count[1] % step == 0),
        WIDE=reach >= 2**31 - 1,
        HAS_C=c is not None,
        PLAIN=alpha == 1 and beta == 1,
        PRECISION="tf32" if allow_tf32 else "ieee",
        ACC=tl.float64 if a.dtype == torch.float64 else tl.float32,
        BLOCKED=blocked,
    )
    options = dict(num_warps=how.warps, num_stages=how.stages)
    for first in range(0, batch, 65535):
        part = slice(first, first + 65535)
        x, y, z = (a, b, o) if batch == 1 else (a[part], b[part], o[part])
        w = z if c is None else c[part]
        work, counters = scratch(a, tiles, count[0] * m * n) if parallel else (z, z)
        grid = (tiles, count[0] if parallel else 1, x.shape[0])
        compiled = start(
            tile_kernel, grid, (x, y, z, w, work, counters, *fixed), constants, options
        )
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
