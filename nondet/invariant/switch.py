"""The switch: which groups of operations are replaced, for which thread, on which device.

The replaced kernels are process-wide: a group is registered with torch's dispatcher while at least
one context that asks for it is open, and given back when the last one closes. What a call then does
is decided a call at a time:

- a thread that entered a context itself follows its own innermost context, so that nesting
  on, off, on works, and another thread's contexts do not change its results;
- a thread that entered none (autograd's device threads, a thread that streams tokens) follows the
  union of the contexts that are open anywhere.

Registering changes torch's dispatch table. That is done under a lock, but other threads should not
be inside an operator just then: open the outermost context before starting them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.library import Library

from nondet.settings import SettingError

# One line a group: the operations that are switched together, as an ablation names them.
GROUPS: dict[str, str] = {
    "matmul": "matrix products: mm, addmm, bmm, baddbmm, mv, addmv and their out forms",
    "attention": "attention of transformers models, and the fused CPU operation when called alone",
    "softmax": "softmax over any dimension",
    "log_softmax": "log_softmax over any dimension",
    "mean": "mean over any dimensions (also inside RMS norms written in PyTorch)",
    "sum": "sum over any dimensions",
    "norm": "fused RMS and layer norms",
    "pointwise": "functions whose scalar and vector code differ: silu, gelu, sigmoid, ...",
    "argmax": "index of the maximum, lowest index on ties",
}
ALL: tuple[str, ...] = tuple(GROUPS)

Kernel = Callable[..., Any]
Table = dict[str, dict[str, Kernel]]

_lock = threading.RLock()
_local = threading.local()
_open: list[frozenset[str]] = []
_union: frozenset[str] = frozenset()
_libraries: dict[str, list[Library]] = {}


def check_ops(ops: str | Iterable[str]) -> frozenset[str]:
    """The named groups as a set; "all" and "none" are accepted. Raises SettingError."""
    if isinstance(ops, str):
        words = {"all": ALL, "none": ()}.get(ops, tuple(part.strip() for part in ops.split(",")))
    else:
        words = tuple(ops)
    for word in words:
        if word not in GROUPS:
            raise SettingError("ops", word, "all, none or some of " + ", ".join(ALL))
    return frozenset(words)


def active(group: str) -> bool:
    """Whether a call of this thread, now, runs the invariant kernel of ``group``."""
    stack = getattr(_local, "stack", None)
    return group in (stack[-1] if stack else _union)


def active_groups() -> frozenset[str]:
    """The groups that are invariant for this thread, now."""
    return frozenset(group for group in GROUPS if active(group))


def registered_groups() -> frozenset[str]:
    """The groups whose kernels sit in torch's dispatch table, now."""
    return frozenset(_libraries)


@contextmanager
def groups_in_force(ops: frozenset[str], tables: dict[str, Table]) -> Iterator[None]:
    """Put exactly ``ops`` in force for this thread; the rest of the process sees the union.

    ``tables``: dispatch key ("CPU", "CUDA") -> group -> operation name -> kernel.
    """
    if not hasattr(_local, "stack"):
        _local.stack = []
    stack: list[frozenset[str]] = _local.stack
    _enter(ops, tables)
    stack.append(ops)
    try:
        yield
    finally:
        stack.pop()
        _leave(ops)


def _enter(ops: frozenset[str], tables: dict[str, Table]) -> None:
    global _union
    with _lock:
        made: dict[str, list[Library]] = {}
        try:
            for group in sorted(ops - set(_libraries)):
                made[group] = []
                for key, table in tables.items():
                    made[group].append(_register(key, table.get(group, {})))
        except BaseException:
            _destroy(library for libraries in made.values() for library in libraries)
            raise
        _libraries.update(made)
        _open.append(ops)
        _union = frozenset().union(*_open)


def _leave(ops: frozenset[str]) -> None:
    global _union
    with _lock:
        _open.remove(ops)
        _union = frozenset().union(*_open)
        for group in set(_libraries) - _union:
            _destroy(_libraries.pop(group))


def _register(key: str, kernels: dict[str, Kernel]) -> Library:
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            # Replacing a kernel is what is wanted here; torch warns about the first one.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for name, kernel in kernels.items():
                library.impl(name, kernel, key, allow_override=True)  # type: ignore[no-untyped-call]
    except BaseException:
        _destroy([library])
        raise
    return library


def _destroy(libraries: Iterable[Library]) -> None:
    for library in libraries:
        library._destroy()  # type: ignore[no-untyped-call]
