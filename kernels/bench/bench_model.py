"""Whole models on the GPU: tokens a second with invariant kernels beside default, and differences.

    PYTHONPATH=.:kernels python kernels/bench/bench_model.py MODEL_FOLDER OUT_FOLDER [seconds]

Greedy generation with transformers as it comes: eager PyTorch, sdpa attention, dynamic cache. Both
arms take turns in one process (A B B A), each once before the clock starts; ``ratio`` is the median
over pairs of turns of default seconds over invariant seconds.

Differences: tokens and bits of the logits of 16 prompts against one prompt at a time, for batch
sizes 8 and 64 (among others' prompts), 33 more places of padding, a static cache, and one forward
pass over prompt and answer (prefill against decode). Writes kernels_model.csv and
kernels_model_bits.csv.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import timing
import torch
import transformers

from nondet.invariant import invariant_kernels
from nondet.invariant.bits import same_bits

SUBJECTS = ("quicksort", "a bounded queue", "binary search", "an LRU cache", "matrix products",
            "a tokenizer", "run-length coding", "a prime sieve")  # fmt: skip
STYLES = ("Write a short Python function for {}.", "Explain {} to a beginner in three sentences.",
          "List edge cases to test in {}, one a line, and say for each what could go wrong.",
          "{}?", "What is the running time of {}, and why?", "Translate to French: I like {}.",
          "def solve(items):\n    # Uses {}\n", "Compare {} with a naive solution, in a table.",
          )  # fmt: skip
SEEN = 16
Outcome = list[tuple[list[int], torch.Tensor]]


def prompts(folder: str) -> list[list[int]]:
    """Token ids of 64 prompts of many lengths."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [style.format(subject) for subject in SUBJECTS for style in STYLES]
    return [tokenizer(text).input_ids for text in texts]


def generate(model: Any, rows: list[list[int]], tokens: int, pads: int = 0,
             logits: bool = True, **options: Any) -> Outcome:  # fmt: skip
    """(tokens, logits (tokens, V)) of each row of one batch, padded on the left."""
    width = max(map(len, rows)) + pads
    ids = torch.tensor([[2] * (width - len(row)) + row for row in rows]).cuda()
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]).cuda()
    with torch.inference_mode():
        done = model.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, eos_token_id=None,
            pad_token_id=2, return_dict_in_generate=True, output_logits=logits,
            disable_compile=True, **options,
        )  # fmt: skip
    new = done.sequences[:, width:].tolist()
    if not logits:
        return [(row, torch.empty(0)) for row in new]
    return list(zip(new, torch.stack(done.logits, 1).cpu(), strict=True))


def arm(model: Any, invariant: bool) -> AbstractContextManager[Any]:
    return invariant_kernels(model) if invariant else nullcontext()


def seconds(model: Any, rows: list[list[int]], tokens: int, invariant: bool) -> float:
    with arm(model, invariant):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        generate(model, rows, tokens, logits=False)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def speed(model: Any, rows: list[list[int]], batch: int, tokens: int, turns: int) -> dict[str, Any]:
    """One row of the table for one batch size."""
    rows = rows[:batch]
    for invariant in (False, True):
        seconds(model, rows, 8, invariant)
    took: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(turns):
        for invariant in (False, True) if turn % 2 == 0 else (True, False):
            took[invariant].append(seconds(model, rows, tokens, invariant))
    ratios = sorted(a / b for a, b in zip(took[False], took[True], strict=True))
    own, ours = (batch * tokens / statistics.median(took[key]) for key in (False, True))
    return dict(batch_size=batch, tokens=tokens, turns=turns, default_tokens_s=round(own, 1),
                invariant_tokens_s=round(ours, 1), ratio=round(statistics.median(ratios), 4),
                ratio_low=round(ratios[0], 4), ratio_high=round(ratios[-1], 4))  # fmt: skip


def differ(wanted: Outcome, found: Outcome) -> tuple[int, int]:
    """Items with other tokens, and items with any other bit of the logits."""
    pairs = list(zip(wanted, found, strict=True))
    return (sum(a[0] != b[0] for a, b in pairs),
            sum(not same_bits(a[1], b[1]) for a, b in pairs))  # fmt: skip


def scored(model: Any, rows: list[list[int]], wanted: Outcome) -> Outcome:
    """The same logits from one forward pass over prompt and answer."""
    found = []
    for row, (tokens, _) in zip(rows, wanted, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([row + tokens]).cuda()
            logits = model(ids, use_cache=False).logits[0, len(row) - 1 : -1]
        found.append((logits.argmax(-1).tolist(), logits.float().cpu()))
    return found


def bits(model: Any, rows: list[list[int]], invariant: bool, tokens: int) -> list[dict[str, Any]]:
    """How many of the first prompts differ from one at a time, for every other way to run them."""
    few = rows[:SEEN]
    with arm(model, invariant):
        wanted = [generate(model, [row], tokens)[0] for row in few]
        ways: dict[str, Callable[[], Outcome]] = {
            "batch 8": lambda: [r for i in (0, 8) for r in generate(model, few[i : i + 8], tokens)],
            "batch 64": lambda: generate(model, rows[:64], tokens)[:SEEN],
            "batch 16, 33 more pads": lambda: generate(model, few, tokens, 33),
            "batch 16, static cache": lambda: generate(
                model, few, tokens, cache_implementation="static"
            ),
            "prefill": lambda: scored(model, few, wanted),
        }
        table = []
        for way, call in ways.items():
            row: dict[str, Any] = dict(kernels="invariant" if invariant else "default", way=way,
                                       items=SEEN, tokens=tokens)  # fmt: skip
            try:
                row["tokens_differ"], row["logits_differ"] = differ(wanted, call())
            except Exception as error:
                row["tokens_differ"] = row["logits_differ"] = f"{type(error).__name__}: {error}"[
                    :200
                ]
            table.append(row)
            print(row, flush=True)
    return table


def profile(model: Any, rows: list[list[int]], path: Path) -> None:
    """Where the host's time goes at batch 1: operations of eight steps of each arm."""
    from torch.profiler import ProfilerActivity, profile

    text = []
    for invariant in (False, True):
        with arm(model, invariant):
            generate(model, rows[:1], 4, logits=False)
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
                generate(model, rows[:1], 8, logits=False)
        text.append(trace.key_averages().table(sort_by="self_cpu_time_total", row_limit=40,
                                               max_name_column_width=60))  # fmt: skip
    path.write_text("\n\n".join(text))


def main() -> None:
    folder, out = sys.argv[1], Path(sys.argv[2])
    start = time.time()
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else 1e9
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    model = model.cuda().eval()
    rows = prompts(folder)
    where = dict(model=Path(folder).name, dtype="bf16", transformers=transformers.__version__)
    print(f"{time.time() - start:.0f} s to load", flush=True)
    table = []
    for batch, tokens, turns in ((64, 32, 16), (8, 32, 8), (1, 32, 8)):
        table.append({**where, **speed(model, rows, batch, tokens, turns)})
        print(table[-1], flush=True)
        timing.write_csv(out / "kernels_model.csv", table)
    print(f"{time.time() - start:.0f} s", flush=True)
    found: list[dict[str, Any]] = []
    for invariant in (True, False):
        if time.time() - start < limit:
            found += bits(model, rows, invariant, 24)
            timing.write_csv(out / "kernels_model_bits.csv", [{**where, **row} for row in found])
            print(f"{time.time() - start:.0f} s", flush=True)
    if time.time() - start < limit:
        profile(model, rows, out / "model_profile.txt")


if __name__ == "__main__":
    main()
