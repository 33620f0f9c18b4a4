"""Triton without a GPU: the kernels compile for sm_90 as on an H200, and nothing is launched.

Inside :func:`offline` the operations of ``nondet_kernels`` accept tensors on the "meta" device and
go their whole way, choices, fallbacks and Triton's own specialisation included; only the driver is
another one. It refuses what the driver of an H200 refuses: more shared memory, registers or threads
than a block may have.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from nondet_kernels import attention_hopper, attention_launch, matmul, matmul_launch, support
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

SHARED = 232_448
"""Bytes of shared memory a block can ask for on sm_90."""
REGISTERS = 65_536
"""Registers of a multiprocessor, which one block must fit into."""


@dataclass
class Compiled:
    """One compiled kernel and what it needs of a multiprocessor."""

    kernel: str
    constants: dict[str, Any]
    types: str
    warps: int
    stages: int
    shared: int
    registers: int
    spill_bytes: int
    """Bytes a thread stores to local memory for want of registers."""
    fits: bool
    seconds: float
    """Compile time; near zero where Triton's cache on disk had the kernel."""
    label: Any
    """What the caller said it was doing."""
    ptx: Path


class Recorder:
    """Stands for Triton's driver: answers as for an H200 and notes every kernel it is handed."""

    def __init__(self, shared: int = SHARED) -> None:
        self.compiled: list[Compiled] = []
        self.label: Any = None
        self.limit = shared
        self.utils = self
        self._files: dict[str, tuple[dict[str, Path], float]] = {}
        self._threads = 1024

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.limit}

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """(module, function, registers, spills, threads a block may have)."""
        last = self.compiled[-1]
        return object(), 0, last.registers, last.spill_bytes // 4, self._threads

    def listen(self, src: Any, metadata: Any, metadata_group: dict[str, str], times: Any,
               cache_hit: bool) -> None:  # fmt: skip
        """Triton's compilation listener: where the results lie and how long they took."""
        files = {name.rsplit(".", 1)[-1]: Path(path) for name, path in metadata_group.items()}
        self._files[metadata["hash"]] = files, 0.0 if cache_hit else times.total / 1e6

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        """Called once a compiled kernel, before its limits are looked at."""
        files, seconds = self._files[metadata.hash]
        registers, spilled = resources(files, metadata)
        # Registers are given to warps in units of 8 a thread.
        self._threads = min(1024, REGISTERS // (-(-max(registers, 1) // 8) * 8) // 32 * 32)
        names = src.fn.arg_names
        constants = {names[path[0]]: value for path, value in src.constants.items()}
        types = [kind for kind in src.signature.values() if kind != "constexpr"]
        self.compiled.append(
            Compiled(
                kernel=src.fn.__name__,
                constants={k: v for k, v in constants.items() if k.isupper()},
                types=" ".join(types),
                warps=metadata.num_warps,
                stages=metadata.num_stages,
                shared=metadata.shared,
                registers=registers,
                spill_bytes=spilled,
                fits=metadata.shared <= self.limit and 32 * metadata.num_warps <= self._threads,
                seconds=seconds,
                label=self.label,
                ptx=files["ptx"],
            )
        )
        return lambda *args: None


def resources(files: dict[str, Path], metadata: Any) -> tuple[int, int]:
    """(registers a thread, bytes it spills) of a compiled kernel."""
    tool = knobs.nvidia.cuobjdump.path
    text = _output([tool, "-res-usage", str(files["cubin"])])
    usage = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert usage is not None, text
    registers, stack = map(int, usage.groups())
    if stack == 0:
        return registers, 0
    # A stack is not a spill yet; the assembler says which.
    command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name=sm_{metadata.target.arch}a"]
    command += [] if metadata.enable_fp_fusion else ["--fmad=false"]
    text = _output([*command, str(files["ptx"]), "-o", "/dev/null"])
    return registers, sum(map(int, re.findall(r"(\d+) bytes spill stores", text)))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@contextlib.contextmanager
def offline(shared: int = SHARED) -> Iterator[Recorder]:
    """Compile for a block limit of ``shared`` bytes; what was compiled before is forgotten.

    Raises:
        RuntimeError: Triton's interpreter is in force in this process.
    """
    if support.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET is set: the interpreter does not compile")
    recorder = Recorder(shared)
    with contextlib.ExitStack() as stack:
        patch = lambda *args: stack.enter_context(mock.patch.object(*args))  # noqa: E731
        patch(support, "INTERPRETED", True)  # The check of devices; mixed.py has its own copy.
        patch(matmul_launch, "hopper", lambda device: True)
        patch(attention_launch, "hopper", lambda device: True)
        patch(attention_hopper, "usable", lambda device: True)
        patch(torch.cuda, "current_device", lambda: None)  # The index of "meta".
        patch(knobs.compilation, "listener", recorder.listen)
        triton.compiler.compiler.max_shared_mem.cache_clear()
        stack.callback(triton.compiler.compiler.max_shared_mem.cache_clear)
        forget()
        stack.callback(forget)
        driver.set_active(recorder)
        stack.callback(driver.set_active, None)
        yield recorder


def forget() -> None:
    """Drop every remembered launch and compiled kernel, so that the next call compiles again."""
    support._compiled.clear()
    matmul._ready.clear()
    matmul_launch._fits.clear()
    for kernel in _kernels():
        kernel.device_caches.clear()


def _kernels() -> list[Any]:
    import sys

    modules = [m for name, m in sys.modules.items() if name.startswith("nondet_kernels")]
    return [f for m in modules for f in vars(m).values() if hasattr(f, "device_caches")]


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")
