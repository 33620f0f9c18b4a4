"""Number formats over batch sizes: how often do answers change, with and without our kernels?

    python -m experiments.precision.study OUT MODEL_FOLDER [ITEMS TOKENS TOGETHER GRAPH]

transformers, greedy, the built-in task, batch sizes 1, 8, 32 and 64; bf16, fp16, layercast and FP32
with torch's and with the invariant kernels; then bf16 with one part in FP32, layercast with a
bf16 cache, and repeats of single settings. GRAPH (0 or 1): a static cache with decode steps as CUDA
graphs in every run, so that small batches do not wait for the host, and single settings once
without graphs; if a capture fails, all run without. A killed study is resumed by the same command;
``python -m experiments.precision.table OUT/study`` makes the table.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.together import failures, run_all
from nondet.settings import Setting, setting_from

BATCHES = tuple(int(b) for b in os.environ.get("BATCHES", "1,8,32,64").split(","))
ARMS: tuple[dict[str, Any], ...] = (
    *({"dtype": d, "kernels": k} for k in ("default", "invariant")
      for d in ("bf16", "fp16", "layercast", "fp32")),
    *({"dtype": "bf16", "backend": {"fp32": level}} for level in ("lm_head", "norms", "residual")),
    *({"dtype": "bf16", "kernels": "invariant", "backend": {"fp32": level}}
      for level in ("lm_head", "residual")),
    {"dtype": "layercast", "backend": {"kv_cache": "bf16"}},
)  # fmt: skip


def settings(model: str, items: int = 64, tokens: int = 128, graph: bool = False) -> list[Setting]:
    """All settings, small batches first, because they take longest; repeats last."""
    base: dict[str, Any] = {
        "model": {"name": "local", "path": model},
        "task": {"name": "recall", "limit": items},
        "max_new_tokens": tokens,
        "threads": 1,
        "timeout_s": 560.0,
    }
    replayed = {"cache": "static", "cuda_graph": True} if graph else {}
    found = []
    for batch in BATCHES:
        for arm in ARMS:
            backend = {"name": "hf", **replayed, **arm.get("backend", {})}
            found.append(setting_from({**base, **arm, "backend": backend, "batch_size": batch}))
    last = [s for s in found if s.batch_size == max(BATCHES) and s.backend == found[0].backend]
    twins = [s for s in last if s.dtype in ("bf16", "layercast")]
    found += [replace(s, repeat=1) for s in twins]
    if graph:
        eager = replace(twins[0].backend, options={"cache": "static"})
        found += [replace(s, backend=eager) for s in twins]
    return found


def graphs_work(model: str, out: Path) -> bool:
    """Whether decode steps can be captured here: two short runs, with either kind of kernels."""
    short = [s for s in settings(model, 4, 8, graph=True) if s.batch_size == max(BATCHES)]
    chosen = [s for s in short if s.backend == short[0].backend and s.dtype == "layercast"]
    return failures(run_all({out / "probe": chosen}, "probe", len(chosen))) == 0


def main(words: list[str]) -> int:
    """Run what is not there yet."""
    out, model = Path(words[0]), words[1]
    items, tokens, together, graph = (
        int(w) for w in (words[2:] + ["64", "128", "12", "0"][len(words[2:]) :])
    )
    graphed = bool(graph) and graphs_work(model, out)
    chosen = settings(model, items, tokens, graphed)
    failed = failures(run_all({out / "study": chosen}, "precision", together))
    print(f"precision: {len(chosen)} settings, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
