"""Attention of transformers models, through its AttentionInterface.

A model that is switched is told for as long as a context is open that it runs sdpa, and behind that
name stands a function that looks at the switch at every call. So a thread or a nested context that
is off still gets the attention that the model came with, and so does any model that is not
switched. The name is not one of our own: models ask for it, and prepare other masks for a name that
they do not know. A model that computes attention by itself keeps its name and its masks; there the
switch is one of products and softmax.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .cpu_attention import attention_rows
from .op import attend
from .switch import active

NAME = "sdpa"
# Arguments of attention functions that the kernels do not have.
UNCOVERED = ("softcap", "s_aux", "sinks")

_lock = threading.RLock()
# id(config) -> [open contexts, name the model came with]; a config is no dictionary key itself.
_switched: dict[int, list[Any]] = {}
# transformers' own functions behind NAME.
_own_functions: dict[str, Callable[..., Any]] = {}
# What ran another attention although the switch was on, with the reason; since the outermost
# context was opened.
uncovered: Counter[str] = Counter()


@contextmanager
def model_switched(model: torch.nn.Module | None) -> Iterator[None]:
    """Give every config inside ``model`` the invariant attention; put the old names back after."""
    configs, others = ([], set()) if model is None else attention_configs(model)
    if configs:
        _register()
    with _lock:
        if not _switched:
            uncovered.clear()
        uncovered.update(f"attention by {kind} itself" for kind in others)
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


def attention_configs(model: torch.nn.Module) -> tuple[list[Any], set[str]]:
    """Configs that choose an attention, the outer before the inner ones, and models without one.

    A model's file that does not know the interface computes attention in its own way.
    """
    found: dict[int, Any] = {}
    chosen: set[int] = set()
    others: dict[int, str] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "_attn_implementation"):
            continue
        found.setdefault(id(config), config)
        others.setdefault(id(config), type(module).__name__)
        if hasattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS"):
            chosen.add(id(config))
    configs = [config for number, config in found.items() if number in chosen]
    return configs, {kind for number, kind in others.items() if number not in chosen}


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with _lock:
        if ALL_ATTENTION_FUNCTIONS[NAME] is not switched_attention:
            _own_functions["attention"] = ALL_ATTENTION_FUNCTIONS[NAME]
            AttentionInterface.register(NAME, switched_attention)
        if ALL_MASK_ATTENTION_FUNCTIONS[NAME] is not switched_mask:
            _own_functions["mask"] = ALL_MASK_ATTENTION_FUNCTIONS[NAME]
            AttentionMaskInterface.register(NAME, switched_mask)


def switched_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The whole (B, 1, T, S) bool mask, or what the model's own attention asks for."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    config = kwargs.get("config")
    if id(config) in _switched and active("attention"):
        kwargs["allow_is_causal_skip"] = False
        kwargs["allow_is_bidirectional_skip"] = False
    elif (own := _own_name(config)) != NAME:
        return ALL_MASK_ATTENTION_FUNCTIONS[own](*args, **kwargs)  # type: ignore[no-any-return]
    mask: Tensor | None = _own_functions["mask"](*args, **kwargs)
    return mask


def switched_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                       attention_mask: Tensor | None = None, **kwargs: Any) -> Any:  # fmt: skip
    """The attention function behind NAME: invariant, or the one that the model came with."""
    if id(getattr(module, "config", None)) in _switched and active("attention"):
        reason = next((word for word in UNCOVERED if kwargs.get(word) is not None), "")
        reason = "dropout" if not reason and kwargs.get("dropout") else reason
        if not reason:
            return invariant_attention(module, query, key, value, attention_mask, **kwargs)
        uncovered[f"attention with {reason}"] += 1
        attention_mask = _own_mask(module, attention_mask, query.dtype)
    return _own(module)(module, query, key, value, attention_mask, **kwargs)


def _own_mask(module: torch.nn.Module, mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What ``switched_mask`` made, as the model's own function wants it: additive for eager."""
    if mask is None or mask.dtype != torch.bool or _own_name(module.config) != "eager":
        return mask
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, torch.finfo(dtype).min)


def invariant_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                        attention_mask: Tensor | None, scaling: float | None = None,
                        is_causal: bool | None = None, position_bias: Tensor | None = None,
                        **kwargs: Any) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The attention function of the interface; returns ((B, T, H, D), None)."""
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


def _own_name(config: Any) -> str:
    entry = _switched.get(id(config))
    return NAME if entry is None or entry[1] is None else str(entry[1])


def _own(module: torch.nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The function the model would have called without the switch."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = _own_name(getattr(module, "config", None))
    if name == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[no-any-return]
    return _own_functions["attention"] if name == NAME else ALL_ATTENTION_FUNCTIONS[name]
