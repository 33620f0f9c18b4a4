"""What each process of vLLM sets for itself before it makes its model: switches, dtype=layercast.

torch keeps its switches a process, Python its classes. vLLM computes in processes of its own as
soon as it has several GPUs or serves, and what its parent has set reaches them only where they
happen to be forked. So the backend names ``Switches`` as vLLM's worker extension: vLLM imports
this module in every worker, wherever that runs. TF32 is not set here: a worker does it itself, by
the variable VLLM_FLOAT32_MATMUL_PRECISION. The invariant mode comes later and sets what it needs.
"""

from __future__ import annotations

import os

import torch

REDUCED_PRECISION = "NONDET_REDUCED_PRECISION"


class Switches:
    """Adds no calls to vLLM's worker; the import is what counts."""


def apply() -> None:
    """Do what NONDET_REDUCED_PRECISION and NONDET_LAYERCAST ask for; without them nothing."""
    asked = os.environ.get(REDUCED_PRECISION)
    if asked is not None:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = asked == "1"
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = asked == "1"
    if "NONDET_LAYERCAST" in os.environ:
        from nondet.backends.vllm_layercast import register

        register()


apply()
