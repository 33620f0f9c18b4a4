"""torch's own kernels, callable while an override stands in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def original(name: str, key: str = "CPU") -> Callable[..., Any]:
    """The kernel that torch registered for ``aten::name`` under dispatch key ``key``.

    Must be asked for once before the operation is replaced (``tables`` of this package do it when
    they are built), because the dispatcher hands out whatever is registered at that time.

    Raises:
        RuntimeError: this torch cannot hand out its kernels.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise RuntimeError(f"kernels=invariant needs a newer torch than {torch.__version__}")
    kernel = torch.library.get_kernel(f"aten::{name}", key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    return functools.partial(kernel.call_boxed, keys)
