"""Attention of transformers models, through its AttentionInterface.

One name is registered there once. A model that is switched carries this name for as long as a
context is open; the function behind it looks at the switch at every call, so a thread or a nested
context that is off still gets the attention that the model came with.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .cpu_attention import attention_rows
from .op import attend
from .switch import active

NAME = "nondet_invariant"

_lock = threading.RLock()
# id(config) -> [open contexts, name the model came with]; a config is no dictionary key itself.
_switched: dict[int, list[Any]] = {}
# What ran torch's own attention although the switch was on, with the reason.
uncovered: set[str] = set()


@contextmanager
def model_switched(model: torch.nn.Module | None) -> Iterator[None]:
    """Give every config inside ``model`` the invariant attention; put the old names back after."""
    configs = [] if model is None else _configs(model)
    if configs:
        _register()
    with _lock:
        for config in configs:
            entry = _switched.setdefault(id(config), [0, config._attn_implementation])
            entry[0] += 1
        for config in configs:
            config._attn_implementation = NAME
    try:
        yield
    finally:
        with _lock:
            for config in configs:
                entry = _switched[id(config)]
                entry[0] -= 1
                if entry[0] == 0:
                    config._attn_implementation = entry[1]
                    del _switched[id(config)]


def _configs(model: torch.nn.Module) -> list[Any]:
    """Configs that choose an attention, the outer before the inner ones."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, invariant_attention)
    AttentionMaskInterface.register(NAME, full_mask)


def full_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The whole (B, 1, T, S) bool mask, or what the model's own attention asks for."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if active("attention"):
        kwargs["allow_is_causal_skip"] = False
        kwargs["allow_is_bidirectional_skip"] = False
        mask: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](*args, **kwargs)
        return mask
    own = _own_name(kwargs.get("config"))
    return ALL_MASK_ATTENTION_FUNCTIONS[own](*args, **kwargs)  # type: ignore[no-any-return]


def invariant_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                        attention_mask: Tensor | None, dropout: float = 0.0,
                        scaling: float | None = None, is_causal: bool | None = None,
                        position_bias: Tensor | None = None,
                        **kwargs: Any) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The attention function of the interface; returns ((B, T, H, D), None)."""
    if not active("attention"):
        return _own(module)(module, query, key, value, attention_mask, dropout=dropout,
                            scaling=scaling, is_causal=is_causal, position_bias=position_bias,
                            **kwargs)  # fmt: skip
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            return _fall_back(name, module, query, key, value, attention_mask, dropout, scaling,
                              **kwargs)  # fmt: skip
    if dropout > 0:
        return _fall_back("dropout", module, query, key, value, attention_mask, dropout, scaling,
                          **kwargs)  # fmt: skip
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    if position_bias is not None:
        attention_mask = _with_bias(attention_mask, position_bias, causal, query, key)
        causal = False
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        lower = torch.get_autocast_dtype(kind)
        query, key, value = (x.to(lower) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    watched = (
        torch.is_grad_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch.compiler.is_compiling()
    )
    if watched or not (query.is_cuda or query.is_cpu):
        out = attend(query, key, value, attention_mask, scale, causal)
    elif query.is_cuda:
        from .cuda import attention

        out = attention(query, key, value, attention_mask, scale, causal)
    else:
        out = attention_rows(query, key, value, attention_mask, scale, causal)
    return out.transpose(1, 2).contiguous(), None


def _with_bias(mask: Tensor | None, bias: Tensor, causal: bool, query: Tensor,
               key: Tensor) -> Tensor:  # fmt: skip
    if mask is None and causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        mask = mask.tril()
    if mask is None:
        return bias
    if mask.dtype != torch.bool:
        return mask + bias
    return torch.where(mask, bias, -torch.inf)


def _fall_back(reason: str, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
               mask: Tensor | None, dropout: float, scaling: float | None,
               **kwargs: Any) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The model's own function, on record as a hole; eager masks are additive."""
    uncovered.add(f"attention with {reason}")
    if mask is not None and mask.dtype == torch.bool and _own_name(module.config) == "eager":
        low = torch.finfo(query.dtype).min
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(
            ~mask, low
        )
    return _own(module)(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)


def _own_name(config: Any) -> str:
    entry = _switched.get(id(config))
    name = entry[1] if entry is not None else None
    return "sdpa" if name in (None, NAME) else str(name)


def _own(module: torch.nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function the model would have called without the switch."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = _own_name(module.config)
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[no-any-return]
    return ALL_ATTENTION_FUNCTIONS[name]  # type: ignore[no-any-return]
