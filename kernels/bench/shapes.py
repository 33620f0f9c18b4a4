"""Layer shapes (N, K) of the four models the figures are about."""

from __future__ import annotations

FUSED: dict[str, dict[str, tuple[int, int]]] = {
    "Qwen3-8B": {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (24576, 4096),
        "down": (4096, 12288),
        "lm_head": (151936, 4096),
    },
    "Llama-3.1-8B": {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
        "lm_head": (128256, 4096),
    },
    "Qwen2.5-1.5B": {
        "qkv": (2048, 1536),
        "o": (1536, 1536),
        "gate_up": (17920, 1536),
        "down": (1536, 8960),
        "lm_head": (151936, 1536),
    },
    "SmolLM2-135M": {
        "qkv": (960, 576),
        "o": (576, 576),
        "gate_up": (3072, 576),
        "down": (576, 1536),
        "lm_head": (49152, 576),
    },
}
"""Projections that share an input taken as one product, as engines do."""

SPLIT: dict[str, dict[str, tuple[int, int]]] = {
    "Qwen3-8B": {"k": (1024, 4096), "gate": (12288, 4096)},
    "Llama-3.1-8B": {"gate": (14336, 4096)},
    "Qwen2.5-1.5B": {"k": (256, 1536), "gate": (8960, 1536)},
    "SmolLM2-135M": {"k": (192, 576), "gate": (1536, 576)},
}
"""The further shapes of the transformers library, which keeps the projections apart."""


def distinct() -> list[tuple[int, int]]:
    """Every (N, K) once, fused ones first."""
    found: list[tuple[int, int]] = []
    for table in (FUSED, SPLIT):
        for layers in table.values():
            found += [shape for shape in layers.values() if shape not in found]
    return found
