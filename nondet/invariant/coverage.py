"""What a model really called while the switch was on, and what each operation is worth.

covered     an invariant kernel stood in its place and was in force
nature      exact in any order: views, copies, comparisons, one rounding an element, lookups
proven      run again on the inputs seen: each row alone gave the bits it gave among the others
hole        none of these: the row changed, or it could not be tried (the reason says which)

On the CPU, functions like exp and silu are not invariant by nature, because their vector and scalar
code differ; they are covered or have to be proven.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .bits import same_bits
from .operations import BaseOperations, operation_name
from .switch import Table, active
from .transformers_attention import uncovered

VERDICTS = ("covered", "nature", "proven", "hole")

_EXACT = """
__and__ __invert__ __or__ __xor__ _local_scalar_dense _reshape_alias _to_copy _unsafe_view abs
add alias all amax amin any arange argmax argmin as_strided bitwise_and bitwise_not bitwise_or
bitwise_xor broadcast_to bucketize cat ceil chunk clamp clamp_max clamp_min clone concat
constant_pad_nd contiguous copy_ detach detach_ diagonal div embedding empty empty_like
empty_strided eq equal expand expand_as fill fill_ flip floor floor_divide fmax fmin full
full_like gather ge gt index index_copy index_copy_ index_select is_nonzero isfinite isin isinf
isnan item le lift_fresh linspace logical_and logical_not logical_or logical_xor lt masked_fill
masked_select max maximum min minimum movedim mul narrow ne neg new_empty new_empty_strided
new_full new_ones new_zeros nonzero ones ones_like permute reciprocal relu remainder repeat
reshape resolve_conj resolve_neg roll round rsub scalar_tensor scatter searchsorted select
select_scatter sign slice slice_scatter split split_with_sizes sqrt squeeze squeeze_ stack sub t
threshold to transpose tril triu trunc unbind unfold unsqueeze unsqueeze_ view view_as_complex
view_as_real where zero_ zeros zeros_like
"""
_NATURE = frozenset(_EXACT.split())
# A few inputs of each operation are enough, and a long generation must not be kept whole.
_KEPT_CALLS = 4
_KEPT_ELEMENTS = 1 << 22


@dataclass
class Seen:
    """One operation of one forward pass or more."""

    operation: str
    calls: int = 0
    covered_calls: int = 0
    inputs: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    shapes: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Entry:
    """The verdict on one operation, with its number of calls and the reason."""

    operation: str
    calls: int
    verdict: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """All verdicts, holes first."""

    entries: tuple[Entry, ...]

    @property
    def holes(self) -> tuple[Entry, ...]:
        """Operations that nothing vouches for."""
        return tuple(entry for entry in self.entries if entry.verdict == "hole")

    def rows(self) -> list[dict[str, str | int]]:
        """One dictionary an operation, for a table."""
        return [vars(entry).copy() for entry in self.entries]

    def __str__(self) -> str:
        width = max((len(entry.operation) for entry in self.entries), default=9)
        lines = [f"{'operation':<{width}}  {'calls':>6}  verdict  reason"]
        for e in self.entries:
            lines.append(f"{e.operation:<{width}}  {e.calls:>6}  {e.verdict:<7}  {e.reason}")
        return "\n".join(lines)


class Watch(BaseOperations):  # type: ignore[no-untyped-call]
    """Records the operations of the calls inside its ``with`` block."""

    def __init__(self, tables: dict[str, Table]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.groups = {
            f"{key}:{name}": group
            for key, table in tables.items()
            for group, named in table.items()
            for name in named
        }
        self.seen: dict[str, Seen] = {}
        self.before = uncovered.copy()

    def base(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Count one operation and keep a few inputs of those that have to be proven."""
        name = operation_name(func)
        entry = self.seen.setdefault(name, Seen(name))
        entry.calls += 1
        kept = None
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        key = "CUDA" if any(x.is_cuda for x in tensors) else "CPU"
        if name == "nondet::attention":
            entry.covered_calls += active("attention")
        elif active(self.groups.get(f"{key}:{name.removeprefix('aten::')}", "")) and not any(
            x.is_complex()
            for x in tensors  # these stay torch's own
        ):
            entry.covered_calls += 1
        elif base_name(name) not in _NATURE:
            shape = str([tuple(x.shape) for x in tensors])
            small = sum(x.numel() for x in tensors) <= _KEPT_ELEMENTS
            if small and shape not in entry.shapes and len(entry.inputs) < _KEPT_CALLS:
                entry.shapes.add(shape)
                kept = _copied(args, kwargs)
        result = func(*args, **kwargs)
        if kept is not None:
            entry.inputs.append(kept)
        return result

    def coverage(self) -> Coverage:
        """Judge what was seen; operations that are neither covered nor exact are probed."""
        entries = [_judge(seen) for seen in self.seen.values()]
        entries += [
            Entry(reason, calls, "hole", "ran the model's own function")
            for reason, calls in (uncovered - self.before).items()
        ]
        order = {verdict: place for place, verdict in enumerate(reversed(VERDICTS))}
        return Coverage(tuple(sorted(entries, key=lambda e: (order[e.verdict], e.operation))))


def base_name(name: str) -> str:
    """``aten::add_.Tensor`` -> ``add``; names that are listed with their underscore stay."""
    base = name.split("::", 1)[1].split(".")[0]
    return base if base in _NATURE or base.startswith("_") else base.rstrip("_")


def _copied(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves, spec = tree_flatten((args, kwargs))
    copies = [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]
    result: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(copies, spec)
    return result


def _judge(seen: Seen) -> Entry:
    if seen.covered_calls == seen.calls:
        return Entry(seen.operation, seen.calls, "covered", "invariant kernel")
    if base_name(seen.operation) in _NATURE:
        return Entry(seen.operation, seen.calls, "nature", "exact in any order")
    if not seen.inputs:
        return Entry(seen.operation, seen.calls, "hole", "inputs too large to try")
    func = _resolve(seen.operation)
    for args, kwargs in seen.inputs:
        try:
            failure = probe(func, args, kwargs)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            failure = "could not be tried: " + (str(error).splitlines() or ["error"])[0][:80]
        if failure:
            return Entry(seen.operation, seen.calls, "hole", failure)
    return Entry(seen.operation, seen.calls, "proven", f"{len(seen.inputs)} captured inputs")


def _resolve(name: str) -> Any:
    space, rest = name.split("::", 1)
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


def probe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], copies: int = 5) -> str:
    """Run rows alone and among others; "" if all bits agree, else what went wrong.

    Rows lie along dimension 0 of every tensor that has as many as the first one. The neighbours
    are the rows themselves in other places and with other values (a lone row has only those).
    """
    leaves, spec = tree_flatten((args, kwargs))
    first = next((x for x in leaves if isinstance(x, Tensor) and x.dim() > 0), None)
    if first is None:
        return "no tensor with rows"
    count = first.shape[0]
    rows = [i for i, x in enumerate(leaves)
            if isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == count]  # fmt: skip

    def run(change: dict[int, Tensor]) -> Any:
        mixed = [change.get(i, x.clone() if isinstance(x, Tensor) else x)
                 for i, x in enumerate(leaves)]  # fmt: skip
        new_args, new_kwargs = tree_unflatten(mixed, spec)
        return func(*new_args, **new_kwargs)

    many = {i: torch.cat([_turned(leaves[i], turn) for turn in range(copies)]) for i in rows}
    together = _tensors(run(many))
    total = count * copies
    for row in {0, 1 % total, total // 2, total - 1}:
        alone = _tensors(run({i: many[i][row : row + 1].clone() for i in rows}))
        for one, all_rows in zip(alone, together, strict=True):
            if one.dim() == 0 or all_rows.shape[0] != total or one.shape[0] != 1:
                return "rows are not kept apart"
            if not same_bits(one, all_rows[row : row + 1]):
                return f"row {row} of {total} differs from the row alone"
    return ""


def _turned(x: Tensor, turn: int) -> Tensor:
    """The rows in another order and, where they are numbers, scaled a little."""
    moved = x.roll(turn, 0)
    return moved * (1 + turn / 8) if turn and x.is_floating_point() else moved


def _tensors(result: Any) -> Iterable[Tensor]:
    return [x for x in tree_flatten(result)[0] if isinstance(x, Tensor)]
