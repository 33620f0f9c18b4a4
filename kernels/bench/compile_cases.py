"""Calls whose kernels ``compile_plans`` compiles: every operation at the shapes of the four models.

Products take one number of rows for each entry of the plan table, whole layers and the parts that
two and four ranks compute; all tensors are "meta" ones, without memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import shapes
import torch
from nondet_kernels import argmax as am
from nondet_kernels import attention, attention_hopper, matmul, matmul_plan, mixed, norm, softmax
from nondet_kernels import reduce as red
from offline import empty

from nondet.parallel import tree

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
HEADS = [(32, 8, 128), (16, 4, 128), (8, 2, 128), (12, 2, 128), (6, 1, 128), (9, 3, 64), (3, 1, 64)]
"""(query heads, key heads, width) of the models, whole and as two and four ranks share them."""
WIDTHS = [576, 1536, 4096]
VOCABULARIES = [49152, 128256, 151936]


class Case(NamedTuple):
    """A call whose launches are to be compiled."""

    operation: str
    dtype: torch.dtype
    sizes: str
    call: Callable[[], object]


def parts() -> list[tuple[int, int]]:
    """The (N, K) that two and four ranks compute, if no whole layer has them."""
    found: list[tuple[int, int]] = []
    for table in (shapes.FUSED, shapes.SPLIT):
        for layers in table.values():
            for layer, (n, k) in layers.items():
                for ranks in (2, 4):
                    one = (n, k // ranks) if layer in ("o", "down") else (n // ranks, k)
                    if one not in found and one not in shapes.distinct():
                        found.append(one)
    return found


def products(sizes: list[tuple[int, int]], dtype: torch.dtype, out: torch.dtype | None = None,
             bias: bool = False, transposed: bool = False) -> Iterator[Case]:  # fmt: skip
    """One call for each row of the plan table of each (N, K)."""
    for n, k in sizes:
        heights = [min(most, 8192) for most, _ in matmul_plan.nearest(n, k)]
        for m in heights if dtype.itemsize == 2 else [1, 8192]:
            x, w = empty(m, k, dtype=dtype), empty(n, k, dtype=dtype)
            w = empty(k, n, dtype=dtype) if transposed else w.t()
            c = empty(n, dtype=dtype) if bias else None
            o = None if out is None else empty(m, n, dtype=out)
            name = "matmul" + "_bias" * bias + "_transposed" * transposed
            name += "" if out is None else "_fp32_out"
            yield Case(name, dtype, f"{m}x{n}x{k}",
                       lambda x=x, w=w, c=c, o=o: matmul.matmul(x, w, c, out=o))  # fmt: skip


def unaligned() -> Iterator[Case]:
    """Rows that the copy engine cannot read, factors, and a batch."""
    for m in (1, 64, 2048):
        x, w = empty(m, 4099)[:, :4096], empty(4096, 4096)
        yield Case("matmul_strided", BF16, f"{m}x4096x4096", lambda x=x, w=w: matmul.linear(x, w))
        a, c = empty(m, 4096), empty(4096)
        yield Case("addmm", BF16, f"{m}x4096x4096",
                   lambda a=a, w=w, c=c: matmul.matmul(a, w.t(), c, 0.5, 2.0))  # fmt: skip
        q, k = empty(32, m, 128), empty(32, 128, 2048)
        yield Case("bmm", BF16, f"32x{m}x2048x128", lambda q=q, k=k: matmul.bmm(q, k))


def ranks() -> Iterator[Case]:
    """Tensor-parallel layers with one order for every number of ranks: the leaves and columns."""
    for layers in (*shapes.FUSED.values(), *shapes.SPLIT.values()):
        for layer, (n, k) in layers.items():
            for share, m in ((s, m) for s in (1, 2, 4) for m in (1, 64, 2048)):
                if layer in ("o", "down"):
                    x, w, count = empty(m, k // share), empty(n, k // share), tree.leaf_count(k)
                    if count % share == 0:
                        yield Case("leaves", BF16, f"{m}x{n}x{k // share} in {count // share}",
                                   lambda x=x, w=w, count=count // share:
                                   tree.leaves_by_triton(x, w, count))  # fmt: skip
                elif n % share == 0:
                    x, w = empty(m, k), empty(n // share, k)
                    yield Case("columns", BF16, f"{m}x{n // share}x{k} of {n}",
                               lambda x=x, w=w, n=n:
                               tree.columns_by_triton(x, w, None, n))  # fmt: skip


def mixtures(dtype: torch.dtype) -> Iterator[Case]:
    """FP32 by 16-bit products, one for each row of their table."""
    for n, k in shapes.distinct():
        for most, _ in mixed._nearest(n, k):
            m = min(most, 2048)
            x, w = empty(m, k, dtype=FP32), empty(n, k, dtype=dtype)
            yield Case("mixed", dtype, f"{m}x{n}x{k}", lambda x=x, w=w: mixed.mixed_linear(x, w))


def attentions(dtype: torch.dtype, plain: bool) -> Iterator[Case]:
    """Decode and prefill of every model; with masks, lengths and offsets unless ``plain``."""
    steps = [(1, 1, 512), (64, 1, 512), (8, 1, 4096), (1, 1, 32768), (64, 1, 4096)]
    steps += [(1, 16, 600), (1, 512, 512), (8, 2048, 2048)]
    more: list[dict[str, Any]] = [
        dict(key_start=1), dict(key_end=1), dict(window=200), dict(causal=False), dict(cu=1)
    ]  # fmt: skip
    for h, hk, d in HEADS if plain else [(12, 2, 128)]:
        for extra, step in itertools.product([{}] if plain else more, steps):
            b, queries, keys = step
            if plain or keys < 4096:  # The kernel that adds splits up takes longest to compile.
                shape = [(b, h, queries, d), (b, hk, keys, d), (b, hk, keys, d)]
                text = f"{b}x{h}/{hk}x{queries}/{keys}x{d} " + " ".join(extra).replace(
                    "causal", "full"
                )
                yield Case("attention", dtype, text.strip(),
                           lambda shape=shape, extra=extra:
                           attend(shape, dtype, **extra))  # fmt: skip


def attend(shape: list[tuple[int, ...]], dtype: torch.dtype, **extra: Any) -> None:
    """One attention call; ``key_start``, ``key_end`` and ``cu`` stand for their tensors."""
    tensors = [empty(*s, dtype=dtype) for s in shape]
    b, _, queries, _ = shape[0]
    for name in ("key_start", "key_end"):
        if name in extra:
            extra[name] = empty(b, dtype=torch.int64)
    if extra.pop("cu", None):
        tensors = [t.transpose(1, 2).flatten(0, 1).contiguous() for t in tensors]
        cu = empty(b + 1, dtype=torch.int32)
        extra |= dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_q=queries, max_k=shape[1][2])
    attention.attention(*tensors, **extra)


def candidate() -> Iterator[Case]:
    """``attention_hopper``, the prefill of heads 128 wide, and the other width it can take."""
    for h, hk, d, stages in ((32, 8, 128, 2), (32, 8, 128, 3), (9, 3, 64, 2)):
        kinds = dict(SPLIT=128, CAUSAL=True, VARLEN=False, START=False, END=False)

        def call(h: int = h, hk: int = hk, d: int = d, stages: int = stages,
                 kinds: dict[str, Any] = kinds) -> None:  # fmt: skip
            q, k, v = (empty(1, n, 2048, d) for n in (h, hk, hk))
            if not attention_hopper.prefill(
                q, k, v, empty(1, h, 2048, d), (q, q, q, q), kinds, 2048, 2048, 1, 0.1, 128, stages
            ):
                raise RuntimeError("the kernel refused these operands")

        yield Case("attention_hopper", BF16, f"{h}/{hk}x2048x{d}", call)


def rows(dtype: torch.dtype) -> Iterator[Case]:
    """Norms, softmax, reductions and argmax at the widths of the models."""
    for m, d in ((m, d) for d in WIDTHS + VOCABULARIES for m in (1, 64, 2048)):
        x, w = empty(m, d, dtype=dtype), empty(d, dtype=dtype)
        calls: dict[str, Callable[[], object]] = {
            "softmax": lambda x=x: softmax.softmax(x, -1),
            "log_softmax": lambda x=x: softmax.log_softmax(x, -1),
            "mean": lambda x=x: red.mean(x, -1),
            "sum": lambda x=x: red.sum(x, -1),
            "argmax": lambda x=x: am.argmax(x, -1),
        }
        if d in WIDTHS:
            calls |= {
                "rms_norm": lambda x=x, w=w: norm.rms_norm(x, w, 1e-6),
                "rms_norm_residual": lambda x=x, w=w: norm.rms_norm(x, w, 1e-6, residual=x),
                "layer_norm": lambda x=x, w=w, d=d: norm.layer_norm(x, [d], w, w),
                "mean_outer": lambda x=x: red.mean(x, 0),
            }
        for name, call in calls.items():
            if dtype != FP64 or name != "argmax":
                yield Case(name, dtype, f"{m}x{d}", call)


def cases() -> Iterator[Case]:
    """All of them."""
    whole = shapes.distinct()
    yield from products(whole, BF16)
    yield from products(parts(), BF16)
    yield from products(whole, FP16)
    yield from products(whole, BF16, out=FP32)
    name = "Qwen2.5-1.5B"
    small = [*shapes.FUSED[name].values(), *shapes.SPLIT[name].values()]
    yield from products(small, BF16, bias=True)
    yield from products(small, BF16, transposed=True)
    yield from products(whole, FP32)
    yield from products(whole, FP64)
    yield from unaligned()
    yield from ranks()
    for dtype in (BF16, FP16):
        yield from mixtures(dtype)
    for dtype in (BF16, FP16, FP32, FP64):
        yield from rows(dtype)
    yield from candidate()
    for dtype in (BF16, FP16, FP32):
        yield from attentions(dtype, True)
    yield from attentions(BF16, False)


def representatives() -> Iterator[Case]:
    """A few of them, each kernel and mode at its heaviest: a minute of one core."""
    yield from heaviest(shapes.distinct() + parts())
    yield from products([(64, 64)], FP32)
    yield from products([(64, 64)], FP64)
    chosen = {("matmul_fp32_out", "8192x28672x4096"), ("matmul_bias", "2048x2048x1536"),
              ("leaves", "2048x4096x4096 in 8"), ("mixed", "2048x4096x14336"),
              ("mixed", "16x256x1536")}  # fmt: skip
    some = itertools.chain(
        products([(28672, 4096)], BF16, out=FP32), products([(2048, 1536)], BF16, bias=True),
        ranks(), mixtures(BF16), mixtures(FP16)
    )  # fmt: skip
    yield from (case for case in some if (case.operation, case.sizes) in chosen)
    for dtype in (BF16, FP32):
        yield from (case for case in rows(dtype) if case.sizes in ("64x4096", "1x151936"))
        prefill = ("1x32/8x512/512x128", "1x9/3x512/512x64", "64x9/3x1/512x64")
        yield from (case for case in attentions(dtype, True) if case.sizes in prefill)


def heaviest(sizes: list[tuple[int, int]]) -> Iterator[Case]:
    """The product of each kernel and mode whose stages hold most."""
    found: dict[tuple[str, str], tuple[int, Case]] = {}
    for case in products(sizes, BF16):
        m, n, k = map(int, case.sizes.split("x"))
        how = matmul_plan.plan(m, n, k, 16, True, 132)
        held = how.stages * how.bk * (how.bm + how.bn)
        if held > found.get((how.kernel, how.mode), (0, case))[0]:
            found[how.kernel, how.mode] = held, case
    yield from (case for _, case in found.values())
