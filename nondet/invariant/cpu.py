"""Which aten operation each group replaces on the CPU, and by what."""

from __future__ import annotations

import functools

from torch import Tensor

from . import cpu_matmul, cpu_pointwise, cpu_reduce
from .cpu_attention import FLASH, attention
from .original import original
from .switch import Kernel, Table, active


def flash(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
          attn_mask: Tensor | None = None,
          scale: float | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """aten::_scaled_dot_product_flash_attention_for_cpu; dropout stays torch's own."""
    if dropout_p > 0:
        return original(FLASH)(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)  # type: ignore[no-any-return]
    return attention(q, k, v, attn_mask, scale, is_causal)


_KERNELS: Table = {
    "matmul": {
        "mm": cpu_matmul.mm,
        "mm.out": cpu_matmul.mm_out,
        "addmm": cpu_matmul.addmm,
        "addmm.out": cpu_matmul.addmm_out,
        "addmm_": cpu_matmul.addmm_,
        "bmm": cpu_matmul.bmm,
        "bmm.out": cpu_matmul.bmm_out,
        "baddbmm": cpu_matmul.baddbmm,
        "baddbmm.out": cpu_matmul.baddbmm_out,
        "baddbmm_": cpu_matmul.baddbmm_,
        "mv": cpu_matmul.mv,
        "addmv": cpu_matmul.addmv,
    },
    "attention": {FLASH: flash},
    "softmax": {"_softmax": cpu_reduce.softmax, "_softmax.out": cpu_reduce.softmax_out},
    "log_softmax": {
        "_log_softmax": cpu_reduce.log_softmax,
        "_log_softmax.out": cpu_reduce.log_softmax_out,
    },
    "mean": {
        "mean": cpu_reduce.mean_all,
        "mean.dim": cpu_reduce.mean_dims,
        "mean.out": cpu_reduce.mean_out,
    },
    "sum": {
        "sum": cpu_reduce.sum_all,
        "sum.dim_IntList": cpu_reduce.sum_dims,
        "sum.IntList_out": cpu_reduce.sum_out,
    },
}
# Asked for inside kernels above although no group replaces them.
_ALSO_USED = ("addmm", "mm", FLASH)


@functools.cache
def table() -> Table:
    """Group -> operation -> kernel; each kernel runs torch's own where its group is not in force.

    Groups that are missing hold by nature on the CPU (argmax compares and takes the first) or by
    torch's own row kernels (layer_norm); ``coverage`` checks them a call at a time.
    """
    kernels = dict(_KERNELS)
    kernels["pointwise"] = {name: cpu_pointwise.aligned(name) for name in cpu_pointwise.NAMES}
    for name in _ALSO_USED:
        original(name)
    return {
        group: {name: _switched(group, name, kernel) for name, kernel in named.items()}
        for group, named in kernels.items()
    }


def _switched(group: str, name: str, kernel: Kernel) -> Kernel:
    own = original(name)

    def call(*args: object, **kwargs: object) -> object:
        return kernel(*args, **kwargs) if active(group) else own(*args, **kwargs)

    return call
