"""Mixtures of experts in transformers models, through its ExpertsInterface.

By default transformers multiplies all experts at once (``torch._grouped_mm``, or a batched product
for short inputs). Which rows share a tile there follows the other rows' experts, and on a GPU
nothing promises a row the same bits. While a context is open, a model that is switched computes
expert by expert instead, as its own code without the interface does: two products an expert, which
the switch replaces like any other, and one addition an expert to each row that chose it, in the
order of the experts. So a row's bits depend on its own experts alone. A thread or a nested context
that is off still gets the implementation that the model came with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .switch import active

NAME = "nondet_experts"

_lock = threading.RLock()
# id(config) -> [open contexts, name the model came with]
_switched: dict[int, list[Any]] = {}


@contextmanager
def experts_switched(model: torch.nn.Module | None) -> Iterator[None]:
    """Give every mixture of experts inside ``model`` its own loop; put the old names back after."""
    configs = [] if model is None else experts_configs(model)
    if configs:
        _register()
    with _lock:
        for config in configs:
            entry = _switched.setdefault(id(config), [0, config._experts_implementation])
            entry[0] += 1
            # Past the property, which would tell all inner configs as well.
            config._experts_implementation_internal = NAME
    try:
        yield
    finally:
        with _lock:
            for config in configs:
                entry = _switched[id(config)]
                entry[0] -= 1
                if entry[0] == 0:
                    config._experts_implementation_internal = entry[1]
                    del _switched[id(config)]


def experts_configs(model: torch.nn.Module) -> list[Any]:
    """Configs that choose how the experts of ``model`` are multiplied."""
    found = {
        id(module.config): module.config
        for module in model.modules()
        if own_loop(module) is not None and hasattr(module, "config")
    }
    return list(found.values())


def switched_experts(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The function behind NAME: expert by expert, or what the model came with."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    loop = own_loop(module)
    assert loop is not None  # or the module's config would not be switched
    if active("matmul"):
        return loop(module, *args, **kwargs)
    own = _switched[id(module.config)][1]
    return ALL_EXPERTS_FUNCTIONS.get_interface(own, loop)(module, *args, **kwargs)


def own_loop(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The forward that the interface was wrapped around; None where there is no interface.

    Seen by what the wrapper holds: marks on the module differ between versions of transformers.
    """
    forward = type(module).forward
    held = [cell.cell_contents for cell in getattr(forward, "__closure__", None) or ()]
    if not any(type(one).__name__ == "ExpertsInterface" for one in held):
        return None
    loop: Callable[..., Any] | None = getattr(forward, "__wrapped__", None)
    return loop


def _register() -> None:
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(NAME, switched_experts)
