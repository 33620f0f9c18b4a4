"""What LayerCast covers: every module that owns parameters, and every narrow result of a pass.

A hole is anything that a forward pass computed in less than FP32: an operation with a 16-bit
result that is not a stored parameter, a view of one or rows of one; a module that was given or
gave 16-bit activations; a module with 16-bit parameters that is not cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from nondet.invariant.operations import BaseOperations, operation_name

from .layercast import LayerCast
from .products import HALVES

# Operations that copy stored weights without computing with them.
_COPIES = ("aten::embedding", "aten::index_select", "aten::index.", "aten::clone", "aten::gather")
_NAMED = 5


@dataclass(frozen=True)
class Entry:
    """One module that owns parameters: what is stored, what is computed, whether it was seen."""

    module: str
    kind: str
    parameters: int
    stored: str
    computed: str
    way: str
    calls: int


@dataclass(frozen=True)
class Coverage:
    """All modules in the model's order, and the holes in words."""

    entries: tuple[Entry, ...]
    holes: tuple[str, ...]

    @property
    def unseen(self) -> tuple[str, ...]:
        """Modules that the pass did not call."""
        return tuple(e.module for e in self.entries if not e.calls and e.way != "as stored")

    def summary(self) -> dict[str, Any]:
        """JSON values for a run's record."""
        ways: dict[str, int] = {}
        stored: dict[str, int] = {}
        for entry in self.entries:
            ways[entry.way] = ways.get(entry.way, 0) + 1
            stored[entry.stored] = stored.get(entry.stored, 0) + entry.parameters
        return {
            "modules": ways,
            "stored_parameters": stored,
            "unseen": len(self.unseen),
            "unseen_first": list(self.unseen[:_NAMED]),
            "holes": len(self.holes),
            "holes_first": list(self.holes[:_NAMED]),
        }


class NarrowResults(BaseOperations):  # type: ignore[no-untyped-call]
    """Collects operations whose result is 16-bit and no stored weight, with the module they ran in.

    ``where``: the names of the modules that are running, outermost first.
    """

    def __init__(self, model: nn.Module, where: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.where = where
        self.found: dict[str, None] = {}

    def base(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = operation_name(func)
        for value in tree_flatten(result)[0]:
            if isinstance(value, Tensor) and value.dtype in HALVES and not self._stored(value):
                if name.startswith(_COPIES) and self._stored(_first(args)):
                    continue
                place = self.where[-1] if self.where else "model"
                self.found[f"{name} gave {str(value.dtype)[6:]} in {place}"] = None
        return result

    def _stored(self, value: Tensor | None) -> bool:
        return value is not None and value.untyped_storage().data_ptr() in self.weights


def _first(args: tuple[Any, ...]) -> Tensor | None:
    return next((x for x in tree_flatten(args)[0] if isinstance(x, Tensor)), None)


@contextmanager
def running_modules(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that are running, kept up to date inside the block."""
    where: list[str] = []
    handles = []
    for name, module in model.named_modules():
        words = f"{name or 'model'} ({type(module).__name__})"
        handles.append(module.register_forward_pre_hook(lambda *_, w=words: where.append(w)))
        handles.append(module.register_forward_hook(lambda *_: where.pop() and None))
    try:
        yield where
    finally:
        for handle in handles:
            handle.remove()


def coverage(cast: LayerCast, call: Callable[[], Any]) -> Coverage:
    """Run the model once by ``call`` and say what of it was not FP32."""
    before = {c.name: (c.calls, c.narrow_inputs) for c in cast.casts}
    for one in cast.casts:
        one.outputs.clear()
    with running_modules(cast.model) as where, NarrowResults(cast.model, where) as narrow:
        call()
    holes = list(narrow.found)
    casts = {c.name: c for c in cast.casts}
    entries = []
    for name, module in cast.model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        c = casts.get(name)
        stored = "+".join(sorted({str(p.dtype)[6:] for p in own.values()}))
        count, kind = sum(p.numel() for p in own.values()), type(module).__name__
        if c is None:
            if any(p.dtype in HALVES for p in own.values()):
                holes.append(f"{name} ({kind}) holds {stored} and is not cast")
            entries.append(Entry(name, kind, count, stored, stored, "as stored", 0))
            continue
        calls, narrow_inputs = (x - y for x, y in zip((c.calls, c.narrow_inputs), before[name],
                                                      strict=True))  # fmt: skip
        if narrow_inputs:
            holes.append(f"{name} ({kind}) was given 16-bit activations")
        if c.outputs:
            holes.append(f"{name} ({kind}) gave {', '.join(sorted(c.outputs))}")
        computed = "+".join(sorted(c.outputs)) or ("float32" if calls else "not seen")
        entries.append(Entry(name, kind, count, stored, computed, c.way, calls))
    return Coverage(tuple(entries), tuple(dict.fromkeys(holes)))


def probe(cast: LayerCast, token: int) -> Coverage:
    """``coverage`` of one pass over two tokens, without a cache."""
    device = next(cast.model.parameters()).device
    ids = torch.full((1, 2), token, dtype=torch.int64, device=device)

    def call() -> None:
        with torch.inference_mode():
            cast.model(ids, use_cache=False)

    return coverage(cast, call)
