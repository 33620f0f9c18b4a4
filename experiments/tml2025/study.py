"""The completions of one prompt at temperature 0, alone and under load, as runs of a study.

    python -m experiments.tml2025.study OUT MODEL_FOLDER [mini|cpu|gpu] [ENGINE] [TOGETHER]

Writes one study folder for each workload below OUT: they differ in what is asked, so they cannot be
one study. ``python -m experiments.tml2025.completions OUT/*`` makes the table. With Hydra,
``+sweep=completions`` does the same for one workload.

| folder | what | control |
| --- | --- | --- |
| alone | the prompt by itself, wave after wave, and in further processes | must be 1 completion |
| sizes | waves of random size, all of the same prompt | |
| load | waves of random size with random neighbours among the copies | |
| sampled | temperature 1, a seed an item | must be many completions |
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.engine_options import SMALL
from experiments.together import failures, run_all
from nondet.settings import Setting, setting_from

# Room for waves of 128.
ENGINE_OPTIONS: dict[str, dict[str, Any]] = {
    "hf": SMALL["hf"],
    "vllm": {**SMALL["vllm"], "cache_gib": 8, "memory_fraction": 0.1, "max_seqs": 128},
    "sglang": {**SMALL["sglang"], "cache_tokens": 131072},
}
# An endpoint is vLLM's own server, with the same options.
ENGINE_OPTIONS["openai"] = {**ENGINE_OPTIONS["vllm"], "serve": "vllm"}


@dataclass(frozen=True)
class Scale:
    """How much is asked: copies alone (an own process each repeat), under load, their neighbours,
    the largest wave, new tokens."""

    alone: int
    repeats: int
    copies: int
    neighbours: int
    largest: int
    tokens: int


SCALES = {
    "mini": Scale(alone=3, repeats=1, copies=16, neighbours=4, largest=8, tokens=32),
    "cpu": Scale(alone=3, repeats=1, copies=200, neighbours=50, largest=16, tokens=64),
    "gpu": Scale(alone=8, repeats=3, copies=1000, neighbours=250, largest=128, tokens=100),
}


def studies(model: str, scale: Scale, engine: str = "hf") -> dict[str, list[Setting]]:
    """The settings of each study by its folder; ``model`` is a folder, or "" for the default."""

    def setting(copies: int, neighbours: int = 0, **changes: Any) -> Setting:
        task = {"name": "completions", "copies": copies, "neighbours": neighbours}
        base: dict[str, Any] = {
            "backend": {"name": engine, **interpreter(engine), **ENGINE_OPTIONS[engine]},
            "model": {"name": "local", "path": model} if model else {},
            "task": task,
            "batch_size": scale.largest,
            "batching": "varied",
            "max_new_tokens": scale.tokens,
            "top_k": 2,
            "threads": 1,
        }
        return setting_from({**base, **changes})

    alone = setting(scale.alone, batch_size=1)
    both = ("default", "invariant")
    found = {
        "alone": [
            *(replace(alone, repeat=number) for number in range(scale.repeats + 1)),
            replace(alone, kernels="invariant"),
            replace(alone, dtype="fp32"),
        ],
        "sizes": [setting(scale.copies, kernels=kernels) for kernels in both],
        "load": [setting(scale.copies, scale.neighbours, kernels=kernels) for kernels in both],
        "sampled": [setting(min(scale.copies, 32), batching="wave", temperature=1.0)],
    }
    if engine != "hf":
        # The engine's own scheduler, with everything asked at once: what the post did.
        found["load"] += [
            setting(scale.copies, scale.neighbours, kernels=kernels, batching="continuous")
            for kernels in both
        ]
    return found


def interpreter(engine: str) -> dict[str, str | None]:
    """$PYTHON_VLLM or $PYTHON_SGLANG, as the option that takes it."""
    if engine == "openai":
        return {"serve_python": os.environ.get("PYTHON_VLLM")}
    return {"python": os.environ.get(f"PYTHON_{engine.upper()}")}


def main(words: list[str]) -> int:
    """Run all studies; 1 when a run failed."""
    out, model = Path(words[0]), words[1]
    scale, engine, together = [*words[2:5], *("gpu", "hf", "1")[len(words[2:5]) :]]
    # The long runs first, so that the short ones fill the gaps.
    order = ("load", "sizes", "alone", "sampled")
    found = studies(model, SCALES[scale], engine)
    done = run_all({out / name: found[name] for name in order}, engine, int(together))
    return int(failures(done) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
