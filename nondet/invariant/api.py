"""The context managers that people use.

with invariant_kernels(model) as switch:
    model.generate(...)

with invariant(ops=("matmul", "mean")):      # an ablation
    ...
    with default_kernels():                  # off again, for this thread
        ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from nondet.settings import SettingError

from .coverage import Coverage, Watch
from .cpu_packed import described
from .modules import modules_switched
from .switch import Table, active_groups, check_ops, groups_in_force
from .transformers_attention import model_switched, uncovered
from .transformers_experts import experts_switched


class invariant:
    """Invariant kernels for the time of a ``with`` block.

    One object may be entered again, nested or from several threads; what it put in force is taken
    back when its block ends, also by an exception. See ``switch`` for what other threads see.

    Args:
        ops: groups of operations (``switch.GROUPS``), "all" or "none".
        model: a transformers model, whose attention and experts are switched too; without one,
            only calls of torch's fused CPU attention are.
        device: "cpu", "cuda" or None: the model's device, or both where there is a GPU.

    Raises:
        SettingError: an unknown group or device.
        RuntimeError: on enter, if the kernels of a GPU that was asked for cannot be imported.
    """

    def __init__(self, ops: str | Iterable[str] = "all", model: torch.nn.Module | None = None,
                 device: str | torch.device | None = None) -> None:  # fmt: skip
        self.ops = check_ops(ops)
        self.model = model
        self.devices = _devices(model, device)
        self._local = threading.local()
        self._watch: Watch | None = None

    def __enter__(self) -> invariant:
        stack = ExitStack()
        with stack:
            stack.enter_context(groups_in_force(self.ops, tables(self.devices)))
            if "attention" in self.ops:
                stack.enter_context(model_switched(self.model))
            if "matmul" in self.ops:
                stack.enter_context(experts_switched(self.model))
            stack.enter_context(modules_switched(self.model, self.ops))
            entered = stack.pop_all()
        self._entered().append(entered)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._entered().pop().__exit__(kind, error, trace)

    def _entered(self) -> list[ExitStack]:
        if not hasattr(self._local, "stacks"):
            self._local.stacks = []
        stacks: list[ExitStack] = self._local.stacks
        return stacks

    def watch(self) -> Watch:
        """A context that records every operation of the calls inside it, for ``coverage``."""
        self._watch = Watch(tables(self.devices))
        return self._watch

    def coverage(self, call: Callable[[], Any] | None = None) -> Coverage:
        """What the operations of a forward pass are worth: covered, by nature, proven or a hole.

        Args:
            call: runs the model once; left out, the last ``watch`` block is judged.

        Raises:
            RuntimeError: neither a call nor a finished ``watch`` block.
        """
        if call is not None:
            with self.watch():
                call()
        if self._watch is None:
            raise RuntimeError("coverage: give a call, or run the model inside watch() first")
        return self._watch.coverage()


def invariant_kernels(model: torch.nn.Module | None = None, ops: str | Iterable[str] = "all",
                      device: str | torch.device | None = None) -> invariant:  # fmt: skip
    """The switch for one model: ``with invariant_kernels(model): model.generate(...)``."""
    return invariant(ops=ops, model=model, device=device)


def default_kernels() -> invariant:
    """torch's own kernels for this thread, also inside an ``invariant`` block."""
    return invariant(ops="none", device="cpu")


def observed() -> dict[str, Any]:
    """What is in force for this thread, as JSON values for a run's record."""
    groups = sorted(active_groups())
    found: dict[str, Any] = {
        "kernels": "invariant" if groups else "default",
        "invariant_operations": groups,
        "uncovered": sorted(uncovered) if "attention" in groups else [],
    }
    if "matmul" in groups:
        found["cpu_products"] = described()
    return found


def tables(devices: tuple[str, ...]) -> dict[str, Table]:
    """Dispatch key -> kernels, for the devices named."""
    found: dict[str, Table] = {}
    if "cpu" in devices:
        from .cpu import table as cpu_table

        found["CPU"] = cpu_table()
    if "cuda" in devices:
        from .cuda import table as cuda_table

        found["CUDA"] = cuda_table()
    return found


def _devices(model: torch.nn.Module | None, device: str | torch.device | None) -> tuple[str, ...]:
    if device is not None:
        kind = torch.device(device).type
    elif model is not None:
        kind = next((p.device.type for p in model.parameters()), "cpu")
    else:
        return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if kind not in ("cpu", "cuda"):
        raise SettingError("device", kind, "cpu or cuda with invariant kernels")
    # Small tensors of a GPU model live on the CPU; their kernels are switched with it.
    return ("cpu",) if kind == "cpu" else ("cpu", "cuda")
