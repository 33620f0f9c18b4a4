"""Every torch switch that moves bits, set on purpose and read back.

torch's defaults differ between releases and can be moved by environment variables, so a run
never relies on them.
"""

from __future__ import annotations

from typing import Any


def set_switches(
    *, tf32: bool, reduced_precision: bool, threads: int | None, seed: int = 0
) -> None:
    """Set TF32, reduced-precision reductions, cuDNN and thread switches of this process.

    tf32: whether float32 products and convolutions may use TF32 on CUDA and oneDNN.
    reduced_precision: whether bf16 and fp16 products may add partial sums in 16 bits
        (torch's default is true).
    threads: CPU threads within one operation; None leaves torch's choice.
    """
    import torch

    mode = "tf32" if tf32 else "ieee"
    backends: Any = torch.backends  # its modules are classes at run time, unknown to a checker
    for part in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        part.fp32_precision = mode
    for part in (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn):
        part.fp32_precision = mode
    backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced_precision
    backends.cuda.matmul.allow_fp16_reduced_precision_reduction = reduced_precision
    backends.cuda.matmul.allow_fp16_accumulation = False
    backends.cudnn.benchmark = False
    backends.cudnn.deterministic = True
    torch.set_flush_denormal(False)
    torch.manual_seed(seed)
    if threads is not None:
        torch.set_num_threads(threads)


def read_switches() -> dict[str, Any]:
    """The same switches as this process has them now."""
    import torch

    backends: Any = torch.backends
    cuda, cudnn = backends.cuda, backends.cudnn
    return {
        "fp32_precision_cuda_matmul": cuda.matmul.fp32_precision,
        "fp32_precision_cudnn_conv": cudnn.conv.fp32_precision,
        "fp32_precision_mkldnn_matmul": backends.mkldnn.matmul.fp32_precision,
        "allow_bf16_reduced_precision_reduction": _first(
            cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "allow_fp16_reduced_precision_reduction": _first(
            cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
        "allow_fp16_accumulation": cuda.matmul.allow_fp16_accumulation,
        "preferred_blas": str(cuda.preferred_blas_library()),
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": backends.mkldnn.is_available() and backends.mkldnn.enabled,
        "threads": torch.get_num_threads(),
        "cpu_capability": backends.cpu.get_cpu_capability(),
    }


def _first(value: Any) -> bool:
    # torch 2.10 and newer may return (allowed, split-K allowed).
    return bool(value[0] if isinstance(value, tuple) else value)
