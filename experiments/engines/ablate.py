"""Which option of vLLM moves bits between two batch sizes?

    python -m experiments.engines.ablate MODEL_FOLDER STORE OUT.json [ITEMS TOKENS SMALL LARGE]

Each variant exchanges one option, runs at both batch sizes in processes of their own, many at a
time, and is compared with itself: only the batch size differs between the two runs of a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.engine_options import recall_values
from experiments.engines.study import TIMEOUT_S
from experiments.engines.summarise import compare
from experiments.together import Outcome, failures, run_all
from nondet.runs import read_run
from nondet.settings import Setting, setting_from

# After so many no run goes on; a rented machine ends a call after 600.
SECONDS = 500
VARIANTS: dict[str, dict[str, Any]] = {
    "as in study.py": {},
    "Triton attention": {"attention_backend": "TRITON_ATTN"},
    "keys in one part": {"kv_splits": 1},
    "room for 64 at both sizes": {"max_seqs": 64},
}


def variant(model: str, options: dict[str, Any], batch: int, items: int, tokens: int) -> Setting:
    """One run of a variant."""
    common = recall_values(model, "vllm", items, tokens)
    # vLLM 0.25.1 dies at max_num_seqs 1 and 2 while it captures its graphs.
    own = {**common["backend"], "max_seqs": max(batch, 8), **options}
    return setting_from({**common, "backend": own, "batch_size": batch, "timeout_s": TIMEOUT_S})


def row(name: str, pair: Sequence[Outcome], store: Path) -> dict[str, Any]:
    """A variant's two runs compared, or why they cannot be."""
    runs = [read_run(store / "runs" / one.run_id) for one in pair if one.run_id]
    if len(runs) == 2 and all(run.status == "complete" for run in runs):
        return {"variant": name, **compare(runs[0], runs[1])}
    return {"variant": name, "failed": [one.reason for one in pair]}


def main(words: list[str]) -> int:
    """Run all variants together, compare the two batch sizes of each; 1 when a run failed."""
    model, store, out = words[0], Path(words[1]), Path(words[2])
    items, tokens, *sizes = (int(word) for word in words[3:7] or ("64", "128", "1", "64"))
    chosen = [
        variant(model, options, size, items, tokens)
        for options in VARIANTS.values()
        for size in sizes
    ]
    found = run_all({store: chosen}, "ablate", len(chosen), SECONDS)
    outcomes = iter(found[store])
    rows = [row(name, [next(outcomes) for _ in sizes], store) for name in VARIANTS]
    out.write_text(json.dumps(rows, indent=1, default=str))
    for line in rows:
        print(line, flush=True)
    return int(failures(found) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
