"""Which aten operations this process computes with kernels registered from Python.

Read from torch's dispatcher, so it tells what is in force and not what was asked for: the
batch-invariant modes of vLLM and SGLang register themselves there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

# What one of the modes, or a library like them, replaces.
OPERATIONS = (
    "mm",
    "mm.out",
    "addmm",
    "addmm.out",
    "bmm",
    "bmm.out",
    "matmul",
    "linear",
    "softmax.int",
    "_softmax",
    "_log_softmax",
    "mean.dim",
    "rms_norm",
    "sum.dim_IntList",
)
# Variables that decide bits and are read by engines or by the libraries under them.
SWITCHES = (
    "VLLM_BATCH_INVARIANT",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_CPU_OMP_THREADS_BIND",
)
_LINE = re.compile(r"^(?P<key>\w+): registered at (?P<source>.+?):\d+ :: .*\[(?P<kind>[^\]]*)\]")


def replaced_operations(key: str) -> dict[str, str]:
    """Operation name to the file that registered its kernel, for dispatch key ``CPU`` or ``CUDA``.

    Only kernels registered from Python, and only those in force (a later one hides an earlier).
    """
    import torch

    found = {}
    for name in OPERATIONS:
        try:
            dump = torch._C._dispatch_dump(f"aten::{name}")
        except RuntimeError:
            continue
        for line in dump.splitlines():
            match = _LINE.match(line)
            # A kernel written in C++ can be called unboxed; one registered from Python cannot.
            if match and match["key"] == key and "unboxed" not in match["kind"]:
                found[name] = source_of(match["source"])
    return found


def source_of(path: str) -> str:
    """The end of a path that names the module: ``layers/batch_invariant.py``."""
    return "/".join(Path(path).parts[-2:])


def in_force() -> dict[str, Any]:
    """The state of this process: replaced operations, switches, numeric modes (JSON values)."""
    import torch

    cuda = torch.cuda.is_available()
    matmul = torch.backends.cuda.matmul
    state: dict[str, Any] = {
        "pid": os.getpid(),
        "replaced_operations": replaced_operations("CUDA" if cuda else "CPU"),
        "switches": {name: os.environ[name] for name in SWITCHES if name in os.environ},
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "bf16_reduced_precision": str(matmul.allow_bf16_reduced_precision_reduction),
        "fp32_precision": str(getattr(matmul, "fp32_precision", "unknown")),
    }
    if cuda:
        state["gpu"] = torch.cuda.get_device_name()
        state["nccl"] = ".".join(str(part) for part in nccl_version())
        state["blas"] = str(torch.backends.cuda.preferred_blas_library())
    return state


def nccl_version() -> tuple[int, ...]:
    """Version of the NCCL that torch carries; empty without one."""
    import torch

    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return tuple(version) if isinstance(version, tuple) else ()
