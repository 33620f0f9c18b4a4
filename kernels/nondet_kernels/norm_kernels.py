"""The Triton kernel behind the norms: rows held in registers, or walked in chunks."""

from __future__ import annotations

from .arithmetic import divide, square_root, tree_sum
from .support import jit, jit_free, tl


@jit
def whole_rows(x_row, r_row, h_row, col, here, D, R: tl.constexpr, CENTRE: tl.constexpr,
               RESIDUAL: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """(centred x, mean, sum of its squares) of rows that fit one block."""
    mask = here & (col < D)
    x = tl.load(x_row + col, mask, other=0.0)
    if RESIDUAL:
        # Rounded to the stream's type first, so that h and norm(h) agree with each other.
        x = (x.to(ACC) + tl.load(r_row + col, mask, other=0.0).to(ACC)).to(x.dtype)
        tl.store(h_row + col, x, mask)
    x = x.to(ACC)
    mean = tl.zeros((R,), dtype=ACC)
    if CENTRE:
        mean = divide(tree_sum(x), tl.full((R,), D, ACC))
        x = tl.where(mask, x - mean[:, None], 0.0)
    return x, mean, tree_sum(x * x)


@jit
def chunked_rows(x_row, r_row, h_row, col, here, D, R: tl.constexpr, B: tl.constexpr,
                 CENTRE: tl.constexpr, RESIDUAL: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """(mean, sum of centred squares) of wider rows, lane by lane over chunks of B."""
    mean = tl.zeros((R,), dtype=ACC)
    lanes = tl.zeros((R, B), dtype=ACC)
    if CENTRE or RESIDUAL:
        for base in range(0, D, B):
            mask = here & (base + col < D)
            x = tl.load(x_row + base + col, mask, other=0.0)
            if RESIDUAL:
                r = tl.load(r_row + base + col, mask, other=0.0)
                x = (x.to(ACC) + r.to(ACC)).to(x.dtype)
                tl.store(h_row + base + col, x, mask)
            lanes += x.to(ACC)
        if RESIDUAL:
            tl.debug_barrier()
            x_row = h_row
    if CENTRE:
        mean = divide(tree_sum(lanes), tl.full((R,), D, ACC))
    lanes = tl.zeros((R, B), dtype=ACC)
    for base in range(0, D, B):
        mask = here & (base + col < D)
        x = tl.load(x_row + base + col, mask, other=0.0).to(ACC)
        x = tl.where(mask, x - mean[:, None], 0.0)
        lanes += x * x
    return mean, tree_sum(lanes)


@jit_free("M")
def norm_kernel(x_ptr, r_ptr, w_ptr, b_ptr, y_ptr, h_ptr, mean_ptr, rstd_ptr, M, D, stride_x,
                stride_r, eps, eps_low, R: tl.constexpr, B: tl.constexpr, ONE: tl.constexpr,
                CENTRE: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr,
                BIAS: tl.constexpr, STATS: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """R rows a program; B columns at a time; one block if ONE, else chunks of B."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    col = tl.arange(0, B)[None, :]
    here = row < M
    x_row, y_row = x_ptr + row * stride_x, y_ptr + row * D
    r_row, h_row = r_ptr + row * stride_r, h_ptr + row * D
    if ONE:
        x, mean, square = whole_rows(x_row, r_row, h_row, col, here, D, R, CENTRE, RESIDUAL, ACC)
    else:
        mean, square = chunked_rows(x_row, r_row, h_row, col, here, D, R, B, CENTRE, RESIDUAL, ACC)
        if RESIDUAL:
            x_row = h_row
    variance = divide(square, tl.full((R,), D, ACC)) + tl.full((R,), eps, ACC)
    if tl.float64 == ACC:
        variance += tl.full((R,), eps_low, ACC)
    root = square_root(variance)
    rstd = divide(tl.full((R,), 1.0, ACC), root)
    if STATS:
        line = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
        tl.store(mean_ptr + line, mean, line < M)
        tl.store(rstd_ptr + line, rstd, line < M)
    for base in range(0, D, B):
        mask = here & (base + col < D)
        if not ONE:
            x = tl.load(x_row + base + col, mask, other=0.0).to(ACC) - mean[:, None]
        if tl.float64 == ACC:
            y = x / root[:, None]  # One rounding less; FP64 is about accuracy.
        else:
            y = x * rstd[:, None]
        if WEIGHT:
            y = y * tl.load(w_ptr + base + col, base + col < D, other=0.0).to(ACC)
        if BIAS:
            y = y + tl.load(b_ptr + base + col, base + col < D, other=0.0).to(ACC)
        tl.store(y_row + base + col, y.to(y_ptr.dtype.element_ty), mask)
