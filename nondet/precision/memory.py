"""Bytes of a model's weights and of its cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def weight_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers as they are stored, tied ones once."""
    return _bytes([*model.parameters(), *model.buffers()])


def cache_bytes(output: Any) -> int | None:
    """Bytes of keys, values and states in the cache that ``generate`` returned; None without."""
    cache = getattr(output, "past_key_values", None)
    cache = getattr(output, "cache", None) if cache is None else cache
    layers = getattr(cache, "layers", None)
    if layers is None:
        return None
    return _bytes(
        value for layer in layers for value in vars(layer).values() if isinstance(value, Tensor)
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    storages = (x.untyped_storage() for x in tensors)
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
