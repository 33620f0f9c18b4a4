"""Does the number of GPUs change answers? transformers, vLLM and SGLang, default and invariant.

    python -m experiments.gpucount.study MODEL_FOLDER STORE [ENGINE,ENGINE] [key=value ...]

    ranks=1,2  items=64  tokens=128  batch=32  singles=6  pairs=1  seconds=500

For machines without Hydra. First the runs on one GPU, ``singles`` at a time on each; then those on
several, ``pairs`` at a time. Tokens/s mean something with singles=1 pairs=1 alone. Two pairs at a
time wait for each other at every exchange: on two H200s a step of transformers then took 0.6 s. No
run goes on after ``seconds``: a rented machine ends a call after 600, and STORE has to be packed
before that. $PYTHON_VLLM and $PYTHON_SGLANG are the engines' interpreters.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from experiments.engine_options import recall_values
from experiments.together import failures, run_all
from nondet.environment import gpu_names
from nondet.settings import Setting, setting_from

KERNELS = {
    "hf": ("default", "tp_invariant", "invariant"),
    "vllm": ("default", "invariant"),
    "sglang": ("default", "invariant"),
}
SIZES = {"items": 64, "tokens": 128, "batch": 32, "singles": 6, "pairs": 1, "seconds": 500}


def settings(
    model: str, engines: list[str], ranks: list[int], sizes: dict[str, int]
) -> list[Setting]:
    """Every engine and mode at every number of GPUs; the default repeated on each number of them;
    tp_invariant at twice the batch as well, where it promises the same bits."""
    # As many threads for every number of ranks: on a CPU they are part of the bits.
    every = {"timeout_s": 400.0, "threads": 4 if gpu_names() else 1}
    found = []
    for engine in engines:
        for kernels, gpus in itertools.product(KERNELS[engine], ranks):
            batches = [(sizes["batch"], 0)]
            if kernels == "default":
                batches.append((sizes["batch"], 1))
            if kernels == "tp_invariant":
                batches.append((2 * sizes["batch"], 0))
            for batch, repeat in batches:
                own = {"kernels": kernels, "gpus": gpus, "batch_size": batch, "repeat": repeat}
                common = recall_values(model, engine, sizes["items"], sizes["tokens"])
                found.append(setting_from({**common, **every, **own}))
    return found


def main(words: list[str]) -> int:
    """Do all runs and write STORE/study.json; 1 when a run failed."""
    model, folder, *rest = words
    given = dict(word.split("=") for word in rest if "=" in word)
    engines = next((word.split(",") for word in rest if "=" not in word), list(KERNELS))
    ranks = [int(number) for number in given.pop("ranks", "1,2").split(",")]
    sizes = {**SIZES, **{key: int(value) for key, value in given.items()}}
    chosen = settings(str(Path(model).absolute()), engines, ranks, sizes)
    share = {count: sizes["singles" if count == 1 else "pairs"] for count in ranks}
    found = run_all({Path(folder): chosen}, "gpucount", share, sizes["seconds"])
    return int(failures(found) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
