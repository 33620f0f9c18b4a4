"""Which option of vLLM moves bits between two batch sizes?

    python experiments/engines/ablate.py MODEL_FOLDER STORE OUT.json [ITEMS TOKENS SMALL LARGE]

Each variant exchanges one option, runs at both batch sizes in processes of their own, many at a
time, and is compared with itself: only the batch size differs between the two runs of a row.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from study import OPTIONS
from summarise import compare

from experiments.together import announce
from nondet.execute import execute
from nondet.plan import Plan, plan_run
from nondet.progress import Lines
from nondet.runs import read_run
from nondet.settings import setting_from

VARIANTS: dict[str, dict[str, Any]] = {
    "as in study.py": {},
    "Triton attention": {"attention_backend": "TRITON_ATTN"},
    "keys in one part": {"kv_splits": 1},
    "room for 64 at both sizes": {"max_seqs": 64},
}


def plan(model: str, options: dict[str, Any], batch: int, items: int, tokens: int) -> Plan:
    """One run of a variant."""
    own = {key: value for key, value in {**OPTIONS["vllm"], **options}.items() if value is not None}
    # vLLM 0.25.1 dies at max_num_seqs 1 and 2 while it captures its graphs.
    own.setdefault("max_seqs", max(batch, 8))
    values = {
        "backend": {"name": "vllm", "python": os.environ.get("PYTHON_VLLM"), **own},
        "model": {"name": "local", "path": model},
        "task": {"name": "recall", "limit": items},
        "batch_size": batch,
        "max_new_tokens": tokens,
        "timeout_s": 480.0,
    }
    return plan_run(setting_from(values))


def main(words: list[str]) -> None:
    """Plan all variants, run them together, compare the two batch sizes of each."""
    model, store, out = words[0], Path(words[1]), Path(words[2])
    announce()
    items, tokens, *sizes = (int(word) for word in words[3:7] or ("64", "128", "1", "64"))
    plans = {
        (name, size): plan(model, options, size, items, tokens)
        for name, options in VARIANTS.items()
        for size in sizes
    }
    with ThreadPoolExecutor(len(plans)) as pool:
        jobs = [
            pool.submit(execute, one, store, Lines(), f"{key[0]} {key[1]}")
            for key, one in plans.items()
        ]
    statuses = [job.result() for job in jobs]
    print("statuses:", statuses, flush=True)
    rows = []
    for name in VARIANTS:
        pair = [read_run(store / plans[name, size].run_id) for size in sizes]
        if all(run.status == "complete" for run in pair):
            rows.append({"variant": name, **compare(*pair)})
        else:
            reasons = [run.record.get("reason") for run in pair]
            rows.append({"variant": name, "failed": reasons})
    out.write_text(json.dumps(rows, indent=1, default=str))
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
