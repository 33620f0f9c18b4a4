"""Does the number of GPUs change answers? transformers, vLLM and SGLang, default and invariant.

    python -m experiments.gpucount.study MODEL_FOLDER STORE [ENGINE,ENGINE] [key=value ...]

    ranks=1,2  items=64  tokens=128  batch=32  singles=6  pairs=1  seconds=500
    kernels=default  options={"cudnn_attention":false}        fewer arms; more options of the engine

For machines without Hydra. First the runs on one GPU, ``singles`` at a time on each; then those on
several, ``pairs`` at a time. Tokens/s mean something with singles=1 pairs=1 alone. Two pairs at a
time wait for each other at every exchange: on two H200s a step of transformers then took 0.6 s. No
run goes on after ``seconds``: a rented machine ends a call after 600, and STORE has to be packed
before that. $PYTHON_VLLM and $PYTHON_SGLANG are the engines' interpreters.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.engine_options import recall_values
from experiments.together import failures, run_all, split_words
from nondet.environment import gpu_names
from nondet.settings import Scalar, Setting, setting_from

KERNELS = {
    "hf": ("default", "tp_invariant", "invariant"),
    "vllm": ("default", "invariant"),
    "sglang": ("default", "invariant"),
}
SIZES = {"items": 64, "tokens": 128, "batch": 32, "singles": 6, "pairs": 1, "seconds": 500}


def settings(
    model: str,
    engines: list[str],
    ranks: list[int],
    sizes: dict[str, int],
    modes: Sequence[str] = (),
    options: Mapping[str, Scalar] | None = None,
) -> list[Setting]:
    """Every engine and mode at every number of GPUs; the default repeated on each number of them;
    tp_invariant at twice the batch as well, where it promises the same bits. modes: no others;
    options: more of the backend's."""
    # As many threads for every number of ranks: on a CPU they are part of the bits.
    every = {"timeout_s": 400.0, "threads": 4 if gpu_names() else 1}
    found = []
    for engine in engines:
        arms = [name for name in KERNELS[engine] if not modes or name in modes]
        for kernels, gpus in itertools.product(arms, ranks):
            batches = [(sizes["batch"], 0)]
            if kernels == "default":
                batches.append((sizes["batch"], 1))
            if kernels == "tp_invariant":
                batches.append((2 * sizes["batch"], 0))
            for batch, repeat in batches:
                own = {"kernels": kernels, "gpus": gpus, "batch_size": batch, "repeat": repeat}
                common = recall_values(model, engine, sizes["items"], sizes["tokens"])
                common["backend"] |= options or {}
                found.append(setting_from({**common, **every, **own}))
    return found


def main(words: list[str]) -> int:
    """Do all runs and write STORE/study.json; 1 when a run failed."""
    model, folder, *rest = words
    given, plain = split_words(rest, [*SIZES, "ranks", "kernels", "options"])
    engines = plain[0].split(",") if plain else list(KERNELS)
    modes = [name for name in given.pop("kernels", "").split(",") if name]
    options = json.loads(given.pop("options", "{}"))
    ranks = [int(number) for number in given.pop("ranks", "1,2").split(",")]
    sizes = {**SIZES, **{key: int(value) for key, value in given.items()}}
    chosen = settings(str(Path(model).absolute()), engines, ranks, sizes, modes, options)
    share = {count: sizes["singles" if count == 1 else "pairs"] for count in ranks}
    found = run_all({Path(folder): chosen}, "gpucount", share, sizes["seconds"])
    return int(failures(found) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
