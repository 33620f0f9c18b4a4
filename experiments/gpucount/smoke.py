"""Do two ranks work here, and do they answer as one does? A tiny random model, half a minute.

    PYTHONPATH=.:kernels python experiments/gpucount/smoke.py OUT.json [RANKS]

With GPUs over NCCL, without over gloo. Each cell is recorded with its reason if it fails.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from nondet.backends.base import Request, Response
from nondet.backends.hf import HFBackend
from nondet.settings import setting_from

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from tiny_llama import make_tiny_llama

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
ITEMS, TOKENS = 16, 32


def answer(model: str, gpus: int, kernels: str) -> tuple[list[Response], dict[str, Any]]:
    """One wave of prompts of rising length, and what was observed."""
    values = {"gpus": gpus, "kernels": kernels, "max_new_tokens": TOKENS, "threads": 1}
    backend = HFBackend(setting_from(values), model)
    rng = np.random.default_rng(0)
    prompts = [tuple(int(t) for t in rng.integers(0, 250, 5 + 3 * n)) for n in range(ITEMS)]
    began = time.perf_counter()
    try:
        backend.start()
        loaded = time.perf_counter()
        found = backend.generate([Request(str(n), p) for n, p in enumerate(prompts)])
        seconds = time.perf_counter() - loaded
        seen = {**backend.observed(), "load_s": loaded - began, "generate_s": seconds}
        return found, seen
    finally:
        backend.close()


def differ(a: list[Response], b: list[Response]) -> dict[str, int]:
    """Items with other tokens, and with other bits of log-probabilities."""
    pairs = list(zip(a, b, strict=True))
    return {
        "items": len(pairs),
        "tokens": sum(x.tokens.tobytes() != y.tokens.tobytes() for x, y in pairs),
        "logprobs": sum(x.top_logprobs.tobytes() != y.top_logprobs.tobytes() for x, y in pairs),
    }


def main(out: Path, ranks: list[int]) -> None:
    """Every kernels value at every number of ranks, compared with one rank."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_tiny_llama(Path(folder), **SIZES))
        for kernels in ("default", "tp_invariant", "invariant"):
            reference: list[Response] = []
            for gpus in ranks:
                cell: dict[str, Any] = {}
                try:
                    found, cell["observed"] = answer(model, gpus, kernels)
                    reference = reference or found
                    cell["differ"] = differ(reference, found)
                except Exception as error:
                    traceback.print_exc()
                    cell["failed"] = f"{type(error).__name__}: {error}"
                result[f"{kernels} {gpus}"] = cell
                seen = cell.get("observed", {})
                print(kernels, gpus, cell.get("failed"), cell.get("differ"),
                      {k: seen.get(k) for k in ("process_group", "load_s", "generate_s")},
                      flush=True)  # fmt: skip
                out.write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(w) for w in sys.argv[2].split(",")] if sys.argv[2:] else [1, 2])
