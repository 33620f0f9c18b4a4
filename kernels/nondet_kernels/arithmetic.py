"""Arithmetic inside kernels, with every addition in a fixed order.

Two rules make the bits independent of tiles, warps and vector width:

1. Sums within a block go through :func:`tree_sum`, which names each addition. ``tl.sum`` over a
   whole axis leaves the order to the register layout, and the layout follows the alignment of
   the pointers and the number of warps.
2. Kernels that must agree with one another are compiled without implicit fusion of multiply and
   add (``enable_fp_fusion=False``); a fused operation is written as ``tl.fma``.
"""

from .support import jit, tl


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
