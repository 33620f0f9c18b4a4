"""Options with which an engine starts beside others on one GPU, and what its runs share."""

from __future__ import annotations

import os
from typing import Any

# Small caches; graphs for decode steps, as the engines are run; the rest as each engine ships it,
# but for what its graphs and binaries need on the machines we had.
SMALL: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {
        "compile_level": 0,
        "cuda_graph": "full_decode_only",
        "cache_gib": 4,
        "memory_fraction": 0.05,
        "max_length": 2048,
    },
    "sglang": {
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "cache_tokens": 65536,
        "max_length": 2048,
        "memory_fraction": 0.9,
    },
}
# A step of vLLM as long as the longest wave's prompts, so that the batch size alone decides.
LONG_STEPS: dict[str, dict[str, Any]] = {**SMALL, "vllm": {**SMALL["vllm"], "chunk_tokens": 8192}}


def recall_values(model: str, engine: str, items: int, tokens: int) -> dict[str, Any]:
    """What all settings of an engine share in a study of the built-in task, as plain values.

    $PYTHON_VLLM and $PYTHON_SGLANG are the engines' interpreters.
    """
    python = os.environ.get(f"PYTHON_{engine.upper()}")
    return {
        "backend": {"name": engine, "python": python, **LONG_STEPS[engine]},
        "model": {"name": "local", "path": model},
        "task": {"name": "recall", "limit": items},
        "max_new_tokens": tokens,
    }
