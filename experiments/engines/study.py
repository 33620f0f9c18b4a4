"""Runs of several engines on one GPU, many at a time, each in its own process.

    python -m experiments.engines.study MODEL STORE ENGINE[,ENGINE] [ITEMS TOKENS TOGETHER SECONDS]
        [batches=8,1] [kernels=invariant]

For machines without Hydra: settings are made here, planned and executed as ``nondet.run`` does.
tokens/s depend on what else the GPU does, so speed.py measures those alone; bits should not, which
is what the repeats are for (transformers' own kernels did not repeat themselves in company). After
SECONDS (500) no run goes on; the same command goes on with the study.
$PYTHON_VLLM and $PYTHON_SGLANG are the engines' interpreters.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from experiments.engine_options import recall_values
from experiments.together import failures, run_all, split_words
from nondet.settings import Setting, setting_from

BATCHES = (64, 32, 8, 1)
TIMEOUT_S = 480.0
CHOICES = {"batches": "batch_size", "kernels": "kernels"}
"""Words that take some of the settings, and the field of a setting that they name."""


def settings(model: str, engine: str, items: int, tokens: int) -> list[Setting]:
    """Mode off and on, batch sizes 1 to 64, and one repeat of batch size 32."""
    found = []
    for kernels in ("default", "invariant"):
        for batch in BATCHES:
            chosen = recall_values(model, engine, items, tokens)
            chosen |= {"kernels": kernels, "timeout_s": TIMEOUT_S}
            if engine == "vllm" and batch == 1:
                # vLLM 0.25.1 dies at max_num_seqs 1 and 2 while it captures its graphs.
                chosen["backend"] = {**chosen["backend"], "max_seqs": 8}
            setting = setting_from({**chosen, "batch_size": batch})
            found.append(setting)
            if batch == 32:
                found.append(replace(setting, repeat=1))
    return found


def main(words: list[str]) -> int:
    """Plan all, then run them, so many at a time; 1 when one failed."""
    named, (model, store, engines, *given) = split_words(words, list(CHOICES))
    some = {name: value.split(",") for name, value in named.items()}
    numbers = [int(word) for word in given]
    items, tokens, together, seconds = [*numbers, *(64, 128, 8, 500)[len(numbers) :]]
    chosen = [
        one
        for engine in engines.split(",")
        for one in settings(model, engine, items, tokens)
        if str(one.batch_size) in some.get("batches", [str(one.batch_size)])
        and one.kernels in some.get("kernels", [one.kernels])
    ]
    for name, values in some.items():
        lost = set(values) - {str(getattr(one, CHOICES[name])) for one in chosen}
        if lost:
            raise SystemExit(f"{name}: no setting has {', '.join(sorted(lost))!r}")
    return int(failures(run_all({Path(store): chosen}, "engines", together, seconds)) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
