"""What invariant kernels cost on the CPU: ratio to torch's own kernels, in the same run.

    python experiments/bench/invariant_cpu.py [--rounds 4] [--threads 2] [--dtypes bf16 fp32]

Greedy generation of the default model, 32 tokens for 8 prompts, in waves of 1, 2, 4 and 8. Both
arms take turns in one process (A B B A ...), each once before the clock starts, and one token
before each turn: copies of the weights are made once a run, not once a turn. ``ratio`` is the
median over rounds of the seconds of one round's invariant arm over its default arm; ``cpu_ratio``
the same of processor seconds, which other work on the machine moves less. With more threads than
free cores neither means much: threads wait for each other. ``--random`` takes random weights of the
same shapes, for machines without the model (``weights`` says which). ``differing`` counts the
prompts whose tokens or logits are not those of waves of 1. ``load`` is the machine's load average.
Writes results/bench/invariant_cpu.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

from nondet.environment import cpu_count, cpu_name
from nondet.invariant import invariant_kernels
from nondet.invariant.bits import same_bits
from nondet.models import find_model
from nondet.settings import ModelSetting

ROOT = Path(__file__).parents[2]
PROMPTS = (
    "What is 17 * 23 + 5?",
    "Name three rivers.",
    "Write a story about a dragon who reads.",
    "Explain recursion.",
    "Who wrote Hamlet, and when was it first performed in London?",
    "List ten capital cities.",
    "Compute 12 + 30 * 2 step by step, please.",
    "Say hello in four languages.",
)
NAMES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Outcome = tuple[list[list[int]], list[torch.Tensor]]


def generate(model: Any, rows: list[list[int]], batch: int, tokens: int) -> Outcome:
    """Tokens and logits of every prompt, in waves padded on the left."""
    outcome: Outcome = ([], [])
    for start in range(0, len(rows), batch):
        wave = rows[start : start + batch]
        width = max(map(len, wave))
        ids = torch.tensor([[2] * (width - len(row)) + row for row in wave])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in wave])
        with torch.inference_mode():
            done = model.generate(
                ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False,
                eos_token_id=None, pad_token_id=2, return_dict_in_generate=True,
                output_logits=True, disable_compile=True,
            )  # fmt: skip
        outcome[0].extend(done.sequences[:, width:].tolist())
        outcome[1].extend(torch.stack(done.logits, 1))
    return outcome


def timed(model: Any, rows: list[list[int]], batch: int, tokens: int,
          invariant: bool) -> tuple[float, float, Outcome]:  # fmt: skip
    """Wall seconds, processor seconds and outcome of one arm."""
    with invariant_kernels(model) if invariant else nullcontext():
        generate(model, rows[:1], 1, 1)  # probes and copies of weights, which a run makes once
        wall, cpu = time.perf_counter(), time.process_time()
        outcome = generate(model, rows, batch, tokens)
        return time.perf_counter() - wall, time.process_time() - cpu, outcome


def differing(a: Outcome, b: Outcome) -> int:
    """Prompts with other tokens or other logits."""
    pairs = zip(*a, *b, strict=True)
    return sum(x != y or not same_bits(p, q) for x, p, y, q in pairs)


def measure(model: Any, rows: list[list[int]], options: argparse.Namespace,
            dtype: str) -> list[dict[str, Any]]:  # fmt: skip
    """One row a batch size."""
    alone: dict[bool, Outcome] = {}
    table = []
    for batch in options.batches:
        walls: dict[bool, list[float]] = {False: [], True: []}
        cpus: dict[bool, list[float]] = {False: [], True: []}
        other = {}
        for arm in (False, True):
            outcome = timed(model, rows, batch, 4, arm)[2]
        for turn in range(options.rounds):
            for arm in (False, True) if turn % 2 == 0 else (True, False):
                wall, cpu, outcome = timed(model, rows, batch, options.tokens, arm)
                walls[arm].append(wall)
                cpus[arm].append(cpu)
                alone.setdefault(arm, outcome)
                other[arm] = differing(alone[arm], outcome)
        ratios = [b / a for a, b in zip(walls[False], walls[True], strict=True)]
        used = [b / a for a, b in zip(cpus[False], cpus[True], strict=True)]
        produced = len(rows) * options.tokens
        table.append({
            "dtype": dtype, "batch_size": batch, "threads": options.threads,
            "rounds": options.rounds, "prompts": len(rows), "tokens": options.tokens,
            "weights": "random" if options.random else "SmolLM2-135M",
            "default_tokens_s": round(produced / statistics.median(walls[False]), 1),
            "invariant_tokens_s": round(produced / statistics.median(walls[True]), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_low": round(min(ratios), 3), "ratio_high": round(max(ratios), 3),
            "cpu_ratio": round(statistics.median(used), 3),
            "default_differing": other[False], "invariant_differing": other[True],
            "load": round(os.getloadavg()[0], 1), "cpu": cpu_name(), "cores": cpu_count(),
            "isa": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__,
            "transformers": transformers.__version__,
        })  # fmt: skip
        print(table[-1], flush=True)
    return table


Loader = Callable[[torch.dtype], Any]


def default_model() -> tuple[list[list[int]], Loader]:
    """The prompts as token ids, and what loads the default model."""
    path = find_model(ModelSetting()).path
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    rows = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in PROMPTS
    ]
    return rows, lambda kind: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=kind)


def random_model() -> tuple[list[list[int]], Loader]:
    """Random token ids of the same lengths, and a random model of SmolLM2-135M's shapes."""
    draw = torch.Generator().manual_seed(0)
    lengths = (46, 36, 42, 36, 48, 38, 52, 40)
    rows = [torch.randint(3, 49152, (n,), generator=draw).tolist() for n in lengths]

    def load(kind: torch.dtype) -> Any:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192,
            tie_word_embeddings=True, initializer_range=0.05,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config).to(kind)

    return rows, load


def main() -> None:
    """Measure every dtype and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="the first so many")
    parser.add_argument("--dtypes", nargs="+", choices=NAMES, default=["bf16", "fp32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "results/bench/invariant_cpu.csv")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    rows, load = random_model() if options.random else default_model()
    table = []
    for dtype in options.dtypes:
        model = load(NAMES[dtype]).eval()
        table += measure(model, rows[: options.prompts], options, dtype)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
