"""``nondet::attention``: one operation, opaque to torch.compile, with a gradient.

    attention(q (B, H, T, D), k (B, Hk, S, D), v (B, Hk, S, Dv), mask, scale, causal)
        -> (B, H, T, Dv)

The CPU kernel reads the mask, which a compiler could not trace; as one operation it need not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .cpu_attention import attention_rows

_SCHEMA = (
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float scale, bool causal) -> Tensor"
)
_library = Library("nondet", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(_SCHEMA)  # type: ignore[no-untyped-call]


def _cpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float,
         causal: bool) -> Tensor:  # fmt: skip
    return attention_rows(q, k, v, mask, scale, causal)


def _cuda(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float,
          causal: bool) -> Tensor:  # fmt: skip
    from .cuda import attention as on_cuda

    return on_cuda(q, k, v, mask, scale, causal)


def _meta(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float,
          causal: bool) -> Tensor:  # fmt: skip
    return q.new_empty(*q.shape[:-1], v.shape[-1])


_library.impl("attention", _cpu, "CPU")  # type: ignore[no-untyped-call]
_library.impl("attention", _cuda, "CUDA")  # type: ignore[no-untyped-call]
torch.library.register_fake("nondet::attention", _meta, lib=_library)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, mask, ctx.scale, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, mask)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients in plain PyTorch; their products and softmax follow the switch.

    p = softmax(scale q k^T); dv = p^T g; ds = p (g v^T - rowsum(p g v^T)); dq = scale ds k;
    dk = scale ds^T q. Sums over the queries that share a key follow the order of the batch.
    """
    q, k, v, mask = ctx.saved_tensors
    shared = q.shape[1] // k.shape[1]
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    queries, keys, values, up = (x.to(kind) for x in (q, k, v, grad))
    keys, values = (x.repeat_interleave(shared, 1) for x in (keys, values))
    scores = queries @ keys.transpose(-1, -2) * ctx.scale
    scores = scores + _additive(mask, ctx.causal, scores.shape[-2:], kind)
    seen = (scores > -torch.inf).any(-1, keepdim=True)
    p = torch.softmax(torch.where(seen, scores, 0), -1) * seen
    dp = up @ values.transpose(-1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.scale
    dq = ds @ keys
    dk = (ds.transpose(-1, -2) @ queries).unflatten(1, (-1, shared)).sum(2)
    dv = (p.transpose(-1, -2) @ up).unflatten(1, (-1, shared)).sum(2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _additive(mask: Tensor | None, causal: bool, shape: torch.Size,
              kind: torch.dtype) -> Tensor | float:  # fmt: skip
    if mask is None and not causal:
        return 0.0
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool).tril()
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=kind, device=mask.device).masked_fill(
            ~mask, -torch.inf
        )
    return mask.to(kind)


torch.library.register_autograd("nondet::attention", _backward, setup_context=_keep, lib=_library)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float,
           causal: bool) -> Tensor:  # fmt: skip
    """Call the operation, so that compilers, dispatch modes and autograd see it."""
    result: Tensor = torch.ops.nondet.attention(q, k, v, mask, scale, causal)
    return result
