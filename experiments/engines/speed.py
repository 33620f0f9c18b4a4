"""Tokens/s of an engine by batch size, and the overhead of nondet over the engine's bare loop.

    python experiments/engines/speed.py ENGINE default|invariant MODEL_FOLDER OUT.csv [LOCK]

One row a measurement. The bare loop is the engine's own ``generate`` with the same requests and
the same log-probabilities asked for, its answers thrown away; bare and ours take turns.
``engine_s`` is the part of ours that was spent inside the engine's ``generate``: what is left
over it is the overhead, also on a machine too busy for two wall times to be compared. With LOCK,
several of these may start together and measure one after another.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from experiments.together import announce
from nondet.backends.base import Backend, Request, backend_class
from nondet.environment import cpu_name, gpu_names, versions
from nondet.settings import Setting, setting_from

COLUMNS = (
    *("engine", "kernels", "batch_size", "what", "tokens", "seconds", "engine_s", "tokens_per_s"),
    *("repeat", "hardware", "versions", "options"),
)
PROMPT = 64


def requests(count: int) -> list[Request]:
    """Prompts of 64 tokens from a fixed seed."""
    rng = np.random.default_rng(7)
    ids = rng.integers(1000, 40000, (count, PROMPT))
    return [Request(str(n), tuple(int(t) for t in row)) for n, row in enumerate(ids)]


def bare(backend: Any, wave: Sequence[Request]) -> int:
    """The engine's own loop; how many tokens it made."""
    setting = backend.setting
    if backend.name == "hf":
        return bare_transformers(backend, wave)
    if backend.name == "vllm":
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=setting.max_new_tokens,
            temperature=0.0,
            logprobs=setting.top_k,
            flat_logprobs=True,
        )
        asked = [{"prompt_token_ids": list(r.prompt_tokens)} for r in wave]
        outputs = backend.llm.generate(asked, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)
    outputs = backend.engine.generate(
        input_ids=[list(r.prompt_tokens) for r in wave],
        sampling_params={"max_new_tokens": setting.max_new_tokens, "temperature": 0.0},
        return_logprob=True,
        logprob_start_len=-1,
        top_logprobs_num=setting.top_k,
    )
    return sum(len(output["output_ids"]) for output in outputs)


def bare_transformers(backend: Any, wave: Sequence[Request]) -> int:
    """``model.generate`` with log-probabilities left out: transformers has none of its own."""
    import torch

    ids = torch.tensor([r.prompt_tokens for r in wave], device=backend.device)
    with torch.inference_mode():
        made = backend.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=backend.setting.max_new_tokens,
            do_sample=False,
            eos_token_id=list(backend.stop_ids),
            pad_token_id=backend.stop_ids[0],
        )
    # As ours counts them: up to and with the first end token.
    new = made[:, PROMPT:].cpu()
    ends = torch.isin(new, torch.tensor(backend.stop_ids))
    first = torch.where(ends.any(1), ends.int().argmax(1) + 1, new.shape[1])
    return int(first.sum())


def engine_of(backend: Backend) -> str:
    """The attribute whose ``generate`` does the work."""
    return {"vllm": "llm", "sglang": "engine", "hf": "model"}[backend.name]


def ours(backend: Backend, wave: Sequence[Request]) -> int:
    """The same wave through the backend."""
    return sum(len(response.tokens) for response in backend.generate(wave))


@contextmanager
def clocked(engine: Any) -> Iterator[list[float]]:
    """Seconds spent in each call of an engine's ``generate``."""
    spent: list[float] = []
    inner = engine.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - began)

    engine.generate = generate
    try:
        yield spent
    finally:
        engine.generate = inner


def timed(work: Callable[[], int]) -> tuple[int, float]:
    """Tokens and seconds."""
    began = time.perf_counter()
    tokens = work()
    return tokens, time.perf_counter() - began


def measure(backend: Any, batches: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Bare and ours by turns at each batch size, after one warm-up wave."""
    rows = []
    for batch in batches:
        wave = requests(batch)
        ours(backend, wave)
        for repeat in range(repeats):
            turns = [("bare", bare), ("nondet", ours)]
            for what, loop in turns if repeat % 2 == 0 else reversed(turns):
                with clocked(getattr(backend, engine_of(backend))) as spent:
                    tokens, seconds = timed(lambda loop=loop, wave=wave: loop(backend, wave))
                rows.append(
                    {
                        "batch_size": batch,
                        "what": what,
                        "tokens": tokens,
                        "seconds": round(seconds, 5),
                        "engine_s": round(sum(spent), 5),
                        "tokens_per_s": round(tokens / seconds, 1),
                        "repeat": repeat,
                    }
                )
    return rows


def main(words: list[str]) -> None:
    """Measure and append to the CSV."""
    engine, kernels, model, out = words[0], words[1], words[2], Path(words[3])
    options = json.loads(os.environ.get("OPTIONS", "{}"))
    batches = [int(b) for b in os.environ.get("BATCHES", "1,8,32,64").split(",")]
    setting: Setting = setting_from(
        {
            "backend": {"name": engine, **options},
            "model": {"name": "local", "path": model},
            "batch_size": max(batches),
            "kernels": kernels,
            "max_new_tokens": int(os.environ.get("TOKENS", "128")),
        }
    )
    announce()
    cls = backend_class(engine)
    os.environ.update(cls.environment(setting))
    backend = cls(setting, model)
    backend.start()
    with ExitStack() as stack:
        if len(words) > 4:
            lock = stack.enter_context(Path(words[4]).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        rows = measure(backend, batches, int(os.environ.get("REPEATS", "4")))
        shared = {
            "engine": engine,
            "kernels": backend.observed().get("kernels", kernels),
            "hardware": ", ".join(gpu_names()) or f"{cpu_name()}, {os.cpu_count()} cores",
            "versions": json.dumps({"python": platform.python_version(), **named(cls.packages())}),
            "options": json.dumps(options),
        }
        new = not out.exists()
        with out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerows({**shared, **row} for row in rows)
    for batch in batches:
        own = [r for r in rows if r["batch_size"] == batch and r["what"] == "nondet"]
        over = [r["seconds"] / r["engine_s"] - 1 for r in own]
        print(
            f"{engine} {kernels} batch {batch}: over the engine {np.median(over):+.3%}", flush=True
        )
    backend.close()


def named(packages: Sequence[str]) -> dict[str, str]:
    """Installed versions of the packages that are there."""
    return {name: version for name, version in versions(packages).items() if version}


if __name__ == "__main__":
    main(sys.argv[1:])
