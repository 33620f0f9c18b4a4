"""Is it the KV cache, the padding, the batch size or the precision? One factor at a time.

    python -m experiments.batch_size.study OUT [MODEL_FOLDER] [ITEMS TOKENS LARGE TOGETHER CONTEXT]

transformers, greedy, the built-in task. In each context (bf16 with torch's kernels, FP32 with
torch's kernels, bf16 with the invariant kernels) one base setting, and settings that differ from it
in exactly one factor. ``python -m experiments.batch_size.causes OUT`` makes the table. A killed
study is resumed by the same command. Defaults: 48 items, 48 tokens, 8 rows a batch, one run at a
time, all contexts; CONTEXT is one of "bf16", "fp32", "bf16 invariant".
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.together import failures, run_all
from nondet.settings import Setting, setting_from

CONTEXTS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bf16"},
    "fp32": {"dtype": "fp32"},
    "bf16 invariant": {"dtype": "bf16", "kernels": "invariant"},
}


def settings(model: str = "", items: int = 48, tokens: int = 48, large: int = 8) -> list[Setting]:
    """All settings; ``large`` rows a batch, four times that for the second step in batch size.

    In each context the base has ``large`` rows, all prompts padded to one length, a growing cache
    and sdpa. Attention is not varied with invariant kernels: they bring their own.
    """
    base: dict[str, Any] = {
        "model": {"name": "local", "path": model} if model else {},
        "task": {"name": "recall", "limit": items},
        "batch_size": large,
        "padding": "fixed",
        "max_new_tokens": tokens,
        "threads": 1,
    }
    found = []
    for context in CONTEXTS.values():
        first = setting_from({**base, **context})
        found.append(first)
        for cache in ("static", "none"):
            found.append(
                setting_from({**base, **context, "backend": {"name": "hf", "cache": cache}})
            )
        found.append(replace(first, padding="wave"))
        found.append(replace(first, batch_size=4 * large))
        found.append(replace(first, batch_size=1))
        found.append(replace(first, batch_size=1, padding="none"))
        if first.kernels == "default":
            found.append(replace(first, attention="eager"))
        # Each context's own control: what one factor moves is more than what no factor moves.
        found.append(replace(first, repeat=1))
    return found


def main(words: list[str]) -> int:
    """Run the study; 1 when a run failed."""
    out, model = Path(words[0]), (words[1] if len(words) > 1 else "")
    given = [int(word) for word in words[2:6]]
    items, tokens, large, together = [*given, *(48, 48, 8, 1)[len(given) :]]
    wanted = settings(model, items, tokens, large)
    if len(words) > 6:
        context = CONTEXTS[words[6]]
        kernels = context.get("kernels", "default")
        wanted = [s for s in wanted if (s.dtype, s.kernels) == (context["dtype"], kernels)]
    # Batches of one take longest: first.
    wanted.sort(key=lambda setting: setting.batch_size != 1)
    return int(failures(run_all({out: wanted}, "batch_size", together)) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
