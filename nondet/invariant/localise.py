"""The first operation that gives one prompt other bits in a batch than alone.

The prompt runs alone and then as one row of a batch of equally long prompts, through the prompt and
some decode steps with the same tokens. Both passes call the same operations in the same order (a
mixture of experts counts as one). The one to look for has equal inputs in the prompt's row and
different outputs: there the batch got in. Everything after it merely inherits the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .bits import differing, same_bits
from .recording import Record, Recorder, record

# What holds no result yet, or mixes rows by design (tokens put in the order of their experts).
_NO_ROWS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided",
            "aten::new_empty_strided", "aten::sort")  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What the comparison of the two passes says.

    status: "identical", "located" (the operation below), "inherited" (outputs differ but no
        operation with equal inputs was seen: the passes could not be matched there) or
        "unmatched" (the passes did not call the same operations).
    step: 0 for the prompt, then decode steps from 1. index: operation within the step, from 0,
        views and copies not counted.
    differing: elements of the first output that differ, of ``elements``; ``largest`` the largest
        absolute difference.
    """

    status: str
    operation: str = ""
    module: str = ""
    step: int = 0
    index: int = 0
    shape: tuple[int, ...] = ()
    differing: int = 0
    elements: int = 0
    largest: float = 0.0

    def __str__(self) -> str:
        where = f"{self.operation} in {self.module or 'the model'}"
        place = "the prompt" if self.step == 0 else f"decode step {self.step}"
        if self.status == "identical":
            return (
                "identical: no operation gave the prompt's row other bits from the same inputs, "
                "and its logits are equal"
            )
        if self.status == "unmatched":
            return f"inconclusive: at {place} the two passes call different operations ({where})"
        amount = f"{self.differing} of {self.elements} elements, largest {self.largest:.3g}"
        if self.status == "inherited":
            return f"inconclusive: inputs of {where} differ at {place}, but no operation before did"
        return (
            f"{where}: same inputs, other outputs, at {place}, operation {self.index}; "
            f"{amount}, output shape alone {self.shape}"
        )


def localise(model: torch.nn.Module, prompt: Sequence[int], neighbours: Sequence[Sequence[int]],
             row: int = 0, steps: int = 4) -> Finding:  # fmt: skip
    """Compare ``prompt`` alone with the same prompt at ``row`` among ``neighbours``.

    Args:
        model: a causal language model of transformers, in eval mode.
        prompt: token ids.
        neighbours: token ids of the other rows, each as long as the prompt.
        row: zero-based place of the prompt in the batch.
        steps: decode steps after the prompt; both passes are fed the lone pass's greedy tokens.

    Raises:
        ValueError: neighbours of another length, or no neighbour, or no such row.
    """
    if not neighbours or any(len(other) != len(prompt) for other in neighbours):
        raise ValueError("localise: neighbours must be given and be as long as the prompt")
    if not 0 <= row <= len(neighbours):
        raise ValueError(f"localise: row must be 0 to {len(neighbours)}")
    rows = [list(other) for other in neighbours]
    rows.insert(row, list(prompt))
    alone, fed = record(model, [list(prompt)], steps, None)
    together, _ = record(model, rows, steps, fed)
    return compare(alone, together, len(rows), row)


def compare(alone: Recorder, together: Recorder, batch: int, row: int) -> Finding:
    """The first operation whose inputs agree in the prompt's row and whose outputs do not."""
    for step, (one, many) in enumerate(zip(alone.steps, together.steps, strict=True)):
        inherited: Finding | None = None
        for index, (a, b) in enumerate(zip(one, many, strict=False)):
            if a.operation != b.operation or len(a.outputs) != len(b.outputs):
                return Finding("unmatched", a.operation, a.module, step, index)
            pairs = _row_outputs(a, b)
            if a.operation.split(".")[0] in _NO_ROWS:
                continue
            if not a.inputs or all(_agree(x, y, batch, row) for x, y in pairs):
                continue  # what is made from nothing, such as row numbers, is no fault
            if len(a.inputs) == len(b.inputs) and all(
                _agree(x, y, batch, row) for x, y in zip(a.inputs, b.inputs, strict=True)
            ):
                return _finding(a, b, batch, row, step, index)
            if inherited is None:
                inherited = Finding("inherited", a.operation, a.module, step, index)
        if len(one) != len(many):
            shorter = min(len(one), len(many))
            return Finding("unmatched", "the number of operations", "", step, shorter)
        last = _row_outputs(one[-1], many[-1]) if one else []
        if inherited is not None and not all(_agree(x, y, batch, row) for x, y in last):
            return inherited
    return Finding("identical")


def _finding(a: Record, b: Record, batch: int, row: int, step: int, index: int) -> Finding:
    for x, y in _row_outputs(a, b):
        part = row_of(y, x, batch, row)
        if part is not None and not same_bits(x, part):
            wide = torch.float64 if x.is_floating_point() else torch.int64
            largest = float((x.to(wide) - part.to(wide)).abs().nan_to_num().max())
            return Finding("located", a.operation, a.module, step, index, tuple(x.shape),
                           differing(x, part), x.numel(), largest)  # fmt: skip
    return Finding("located", a.operation, a.module, step, index)


def _row_outputs(a: Record, b: Record) -> list[tuple[Tensor, Tensor]]:
    """Outputs that have rows: a sum over the whole batch may differ without any fault."""
    shared = all(x.shape == y.shape for x, y in zip(a.inputs, b.inputs, strict=False))
    pairs = zip(a.outputs, b.outputs, strict=True)
    return [(x, y) for x, y in pairs if shared or x.shape != y.shape]


def _agree(one: Tensor, many: Tensor, batch: int, row: int) -> bool:
    part = row_of(many, one, batch, row)
    # What cannot be matched by shape (a count, a flag over all rows) is not held against a row.
    return part is None or same_bits(one, part)


def row_of(many: Tensor, one: Tensor, batch: int, row: int) -> Tensor | None:
    """The part of ``many`` that belongs to the row; None if the shapes do not tell.

    One dimension of ``many`` must be ``batch`` times as long as that of ``one``: the batch itself
    or the batch flattened together with what lies behind it.
    """
    if many.dim() != one.dim():
        return None
    other = [d for d in range(one.dim()) if many.shape[d] != one.shape[d]]
    if not other:
        return many
    d = other[0]
    if len(other) > 1 or many.shape[d] != batch * one.shape[d]:
        return None
    return many.narrow(d, row * one.shape[d], one.shape[d])
