"""Switches of torch that each process of vLLM sets for itself before it makes its model.

torch keeps them a process. vLLM computes in processes of its own as soon as it has several GPUs
or serves, and what its parent has set reaches them only where they happen to be forked. So the
backend names ``Switches`` as vLLM's worker extension: vLLM imports this module in every worker,
wherever that runs. TF32 is not among them: a worker sets it itself, from the variable
VLLM_FLOAT32_MATMUL_PRECISION. The invariant mode comes later and sets what it needs.
"""

from __future__ import annotations

import os

import torch

REDUCED_PRECISION = "NONDET_REDUCED_PRECISION"


class Switches:
    """Adds no calls to vLLM's worker; the import is what counts."""


def apply() -> None:
    """Set what NONDET_REDUCED_PRECISION asks for; without the variable nothing is touched."""
    asked = os.environ.get(REDUCED_PRECISION)
    if asked is None:
        return
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = asked == "1"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = asked == "1"


apply()
