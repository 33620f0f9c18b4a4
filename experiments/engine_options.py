"""Options with which an engine starts beside others on one GPU."""

from __future__ import annotations

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
