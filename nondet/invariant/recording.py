"""What every operation of a pass reads and writes, so that two passes can be compared.

A mixture of experts counts as one operation: inside, rows are put in the order of the experts they
chose, and which experts run at all follows the other rows, so two passes have nothing to match.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from .operations import BaseOperations, operation_name
from .transformers_experts import own_loop

EXPERTS = "experts"

# What only lays elements out anew: a reshape is a view in one pass and a copy in the other.
_LAYOUT = ("aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::clone")


@dataclass
class Record:
    """One operation: its name, the innermost module it ran in, and copies of what it touched."""

    operation: str
    module: str
    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass
class Recorder:
    """The operations of one pass, a list for each step: the prompt, then each decode step."""

    steps: list[list[Record]] = field(default_factory=list)


def record(model: torch.nn.Module, rows: list[list[int]], steps: int,
           fed: list[int] | None) -> tuple[Recorder, list[int]]:  # fmt: skip
    """Run ``rows`` (equally long prompts) and ``steps`` decode steps; record all operations.

    Every row is fed the tokens ``fed`` (one a step), or the greedy ones of row 0 if there are none;
    those are returned beside the records.
    """
    from transformers import DynamicCache

    device = next(model.parameters()).device
    recorder = Recorder()
    mode = _Recording(model, recorder)
    tokens = torch.tensor(rows, device=device)
    cache = DynamicCache(config=model.config)
    # The argument was renamed in transformers 5.2x.
    known = inspect.signature(type(model).forward).parameters
    kept = {"cache" if "cache" in known else "past_key_values": cache}
    chosen: list[int] = []
    with torch.inference_mode(), mode.watching(model):
        for step in range(steps + 1):
            recorder.steps.append([])
            mask = torch.ones(len(rows), len(rows[0]) + step, dtype=torch.int64, device=device)
            with mode:
                logits = model(tokens, attention_mask=mask, **kept).logits
            chosen.append(int(logits[0, -1].argmax()) if fed is None else fed[step])
            tokens = torch.full((len(rows), 1), chosen[-1], device=device)
    return recorder, chosen


class _Recording(BaseOperations):  # type: ignore[no-untyped-call]
    def __init__(self, model: torch.nn.Module, into: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.into = into
        self.names: list[str] = []  # the modules that are running, innermost last
        self.read: list[Tensor] | None = None  # inputs of the experts that are running
        # Weights are the same in both passes: kept by reference, not copied.
        self.weights = {p.data_ptr() for p in [*model.parameters(), *model.buffers()]}

    def base(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.read is not None or operation_name(func) in _LAYOUT:
            return func(*args, **kwargs)
        read = self._kept((args, kwargs))
        result = func(*args, **kwargs)
        self._add(operation_name(func), read, result)
        return result

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Know which module runs, and take each mixture of experts as one operation."""
        handles = []
        for name, module in model.named_modules():
            experts = own_loop(module) is not None
            enter, leave = self._enter(name, experts), self._leave(experts)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, experts: bool) -> Any:
        def hook(_: Any, args: Any, kwargs: Any) -> None:
            self.names.append(name)
            if experts:
                self.read = self._kept((args, kwargs))  # clones, which are not recorded

        return hook

    def _leave(self, experts: bool) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            if experts:
                assert self.read is not None
                self._add(EXPERTS, self.read, output)
                self.read = None
            self.names.pop()

        return hook

    def _add(self, operation: str, read: list[Tensor], result: Any) -> None:
        module = self.names[-1] if self.names else ""
        self.into.steps[-1].append(Record(operation, module, read, self._kept(result)))

    def _kept(self, values: Any) -> list[Tensor]:
        found = [x for x in tree_flatten(values)[0] if isinstance(x, Tensor)]
        return [x if x.data_ptr() in self.weights else x.clone() for x in found]
