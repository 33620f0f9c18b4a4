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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .bits import same_bits
from .switch import Table, active

VERDICTS = ("covered", "nature", "proven", "hole")

_EXACT = """
add sub rsub mul div neg abs sign sqrt reciprocal floor ceil round trunc clamp clamp_min clamp_max
maximum minimum fmax fmin where eq ne lt le gt ge logical_and logical_or logical_not logical_xor
bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf isfinite relu threshold masked_fill
masked_select copy_ copy clone _to_copy to contiguous lift_fresh detach fill fill_ zero_ zeros ones
full empty empty_like new_zeros new_ones new_full new_empty zeros_like ones_like full_like arange
linspace scalar_tensor empty_strided new_empty_strided embedding index index_select gather scatter
index_copy index_copy_ index_put index_put_ slice_scatter select_scatter cat stack concat repeat
expand flip roll tril triu constant_pad_nd any all max min amax amin argmax argmin topk sort isin
nonzero unique _local_scalar_dense equal item view _unsafe_view reshape permute transpose t slice
select unsqueeze squeeze split split_with_sizes unbind chunk unfold alias as_strided diagonal
narrow movedim _reshape_alias view_as_real view_as_complex resolve_conj expand_as is_nonzero
cumsum_int one_hot bucketize searchsorted remainder floor_divide
""".split()
_NATURE = frozenset(_EXACT)
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


class Watch(TorchDispatchMode):
    """Records the operations of the calls inside its ``with`` block."""

    def __init__(self, tables: dict[str, Table]) -> None:
        super().__init__()
        self.groups = {
            f"{key}:{name}": group
            for key, table in tables.items()
            for group, named in table.items()
            for name in named
        }
        self.seen: dict[str, Seen] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        name = _name(func)
        entry = self.seen.setdefault(name, Seen(name))
        entry.calls += 1
        kept = None
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        key = "CUDA" if any(x.is_cuda for x in tensors) else "CPU"
        if name == "nondet::attention":
            entry.covered_calls += active("attention")
        elif active(self.groups.get(f"{key}:{name.removeprefix('aten::')}", "")):
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
        from .transformers_attention import uncovered

        entries = [_judge(seen) for seen in self.seen.values()]
        entries += [
            Entry(reason, 1, "hole", "ran the model's own function") for reason in uncovered
        ]
        order = {verdict: place for place, verdict in enumerate(reversed(VERDICTS))}
        return Coverage(tuple(sorted(entries, key=lambda e: (order[e.verdict], e.operation))))


def base_name(name: str) -> str:
    """``aten::add_.Tensor`` -> ``add``; names that are listed with their underscore stay."""
    base = name.split("::", 1)[1].split(".")[0]
    return base if base in _NATURE or base.startswith("_") else base.rstrip("_")


def _name(func: Any) -> str:
    name = str(func.name())
    return name.removesuffix(".default")


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
