"""Runs of several engines on one GPU, many at a time, each in its own process.

    python experiments/engines/study.py MODEL_FOLDER STORE ENGINE[,ENGINE] [ITEMS TOKENS TOGETHER]

For machines without Hydra: settings are made here, planned and executed as ``nondet.run`` does.
Bits do not depend on what else the GPU does; tokens/s do, so speed.py measures those alone.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.together import announce
from nondet.execute import execute
from nondet.plan import Plan, plan_run
from nondet.progress import Lines
from nondet.settings import Setting, setting_from

BATCHES = (64, 32, 8, 1)
# Small caches, so that many engines fit; graphs for decode steps, as the engines are run.
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {
        "compile_level": 0,
        "cuda_graph": "full_decode_only",
        "cache_gib": 4,
        "memory_fraction": 0.05,
        "max_length": 2048,
        "chunk_tokens": 8192,
    },
    "sglang": {
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "cache_tokens": 65536,
        "max_length": 2048,
        "memory_fraction": 0.9,
    },
    "hf": {},
}


def settings(model: str, engine: str, items: int, tokens: int) -> list[Setting]:
    """Mode off and on, batch sizes 1 to 64, and one repeat of batch size 32."""
    found = []
    python = os.environ.get(f"PYTHON_{engine.upper()}")
    for kernels in ("default", "invariant"):
        for batch in BATCHES:
            own = dict(OPTIONS[engine])
            if engine == "vllm" and batch == 1:
                # vLLM 0.25.1 dies at max_num_seqs 1 and 2 while it captures its graphs.
                own["max_seqs"] = 8
            setting = setting_from(
                {
                    "backend": {"name": engine, "python": python, **own},
                    "model": {"name": "local", "path": model},
                    "task": {"name": "recall", "limit": items},
                    "batch_size": batch,
                    "kernels": kernels,
                    "max_new_tokens": tokens,
                    "timeout_s": 480.0,
                }
            )
            found.append(setting)
            if batch == 32 and engine != "hf":
                found.append(replace(setting, repeat=1))
    return found


def name(plan: Plan) -> str:
    """A run in the log."""
    setting = plan.setting
    return f"{setting.backend.name} {setting.kernels} {setting.batch_size}.{setting.repeat}"


def main(words: list[str]) -> None:
    """Plan all, then run them, so many at a time."""
    model, store, engines = words[0], Path(words[1]), words[2].split(",")
    items, tokens, together = (int(w) for w in words[3:6] or ("64", "128", "8"))
    announce()
    plans = [plan_run(s) for e in engines for s in settings(model, e, items, tokens)]
    with ThreadPoolExecutor(together) as pool:
        results = list(pool.map(lambda plan: execute(plan, store, Lines(), name(plan)), plans))
    print("all done:", dict(zip([p.run_id for p in plans], results, strict=True)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
