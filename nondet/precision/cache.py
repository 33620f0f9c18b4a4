"""Keys and values kept in bf16 under a model that computes in FP32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def half_cache() -> Callable[[], None]:
    """From now on FP32 keys and values are stored in bf16 and read back as FP32.

    Every kind of transformers' cache goes through ``Cache.update``. Returns what ends it.
    """
    from transformers.cache_utils import Cache

    own = Cache.update

    def update(self: Any, key_states: Tensor, value_states: Tensor, *args: Any,
               **kwargs: Any) -> tuple[Tensor, Tensor]:  # fmt: skip
        narrow = (x.to(torch.bfloat16) for x in (key_states, value_states))
        keys, values = own(self, *narrow, *args, **kwargs)
        return keys.to(key_states.dtype), values.to(value_states.dtype)

    Cache.update = update

    def undo() -> None:
        Cache.update = own

    return undo
