"""Does vLLM do in each of its processes what a setting asks? With a real engine, in a minute.

    python experiments/engines/switches.py MODEL_FOLDER GPUS DTYPE

Asks for TF32 and full-precision sums of 16-bit products, and for three prompts of which one is too
long and one leaves room for six tokens. Prints what came back and what the workers say of
themselves. OPTIONS: more options of the backend as JSON, in place of a share of the memory that
leaves room for others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from experiments.engine_options import SMALL
from nondet.backends.base import Request
from nondet.backends.vllm import VLLMBackend
from nondet.settings import setting_from

LENGTH = 256
PROMPTS = (20, LENGTH, LENGTH - 6)
# vLLM's own share of a GPU is nearly all of it.
SHARE = {name: SMALL["vllm"][name] for name in ("memory_fraction", "cache_gib")}


def main(words: Sequence[str]) -> None:
    """Start the engine, ask, and print one line of JSON."""
    model, gpus, dtype = words
    more = json.loads(os.environ.get("OPTIONS", "{}"))
    values = {
        "backend": {"name": "vllm", "max_length": LENGTH, "max_seqs": 8, **SHARE, **more},
        **{"batch_size": len(PROMPTS), "max_new_tokens": 12, "gpus": int(gpus), "dtype": dtype},
        **{"tf32": True, "reduced_precision": False},
    }
    setting = setting_from(values)
    VLLMBackend.check(setting)
    os.environ.update(VLLMBackend.environment(setting))
    backend = VLLMBackend(setting, model)
    backend.start()
    try:
        wave = [Request(str(n), tuple(100 + at % 100 for at in range(n))) for n in PROMPTS]
        answers = [(one.finish_reason, len(one.tokens), one.note) for one in backend.generate(wave)]
        print(json.dumps({"answers": answers, **backend.observed()}, default=str), flush=True)
    finally:
        backend.close()


if __name__ == "__main__":  # vLLM starts its workers by importing this file again
    main(sys.argv[1:])
