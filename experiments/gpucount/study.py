"""Does the number of GPUs change answers? transformers, vLLM and SGLang, default and invariant.

    python -m experiments.gpucount.study MODEL_FOLDER STORE [ENGINE,ENGINE] [key=value ...]

    ranks=1,2  items=64  tokens=128  batch=32  singles=6  pairs=1  seconds=570

For machines without Hydra. Every run is a process of its own, planned, stored and resumed as
``nondet.run`` does it: first the runs on one GPU, ``singles`` at a time, dealt out over the GPUs;
then those on several, ``pairs`` at a time. Bits do not depend on what else runs; times do, so
tokens/s mean something with singles=1 pairs=1 alone. Two pairs at a time wait for each other at
every exchange: on two H200s a step of transformers then took 0.6 s. No run starts after
``seconds``. PYTHON_VLLM and PYTHON_SGLANG name interpreters, PYTHONPATH_VLLM and
PYTHONPATH_SGLANG folders of packages.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.together import announce
from nondet.environment import gpu_names
from nondet.execute import execute
from nondet.plan import plan_run
from nondet.progress import Lines
from nondet.runs import write_json
from nondet.settings import SettingError, setting_from

ENGINES = ("hf", "vllm", "sglang")
KERNELS = {
    "hf": ("default", "tp_invariant", "invariant"),
    "vllm": ("default", "invariant"),
    "sglang": ("default", "invariant"),
}
# Small caches, so that many engines fit; graphs for decode steps, as the engines are run.
OPTIONS: dict[str, dict[str, Any]] = {
    "hf": {},
    "vllm": {
        "compile_level": 0,
        "cuda_graph": "full_decode_only",
        "cache_gib": 4,
        "memory_fraction": 0.06,
        "max_length": 2048,
        "chunk_tokens": 8192,
    },
    "sglang": {
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "cache_tokens": 65536,
        "max_length": 2048,
        "memory_fraction": 0.9,
    },
}
SIZES = {"items": 64, "tokens": 128, "batch": 32, "singles": 6, "pairs": 1, "seconds": 570}


@dataclass(frozen=True)
class Job:
    """One run: the setting as plain values."""

    values: dict[str, Any]

    @property
    def label(self) -> str:
        v = self.values
        words = f"{v['backend']['name']} {v['kernels']} gpus={v['gpus']} batch={v['batch_size']}"
        return words + (f" repeat {v['repeat']}" if v["repeat"] else "")


def jobs(model: str, engines: list[str], ranks: list[int], sizes: dict[str, int]) -> list[Job]:
    """Every engine and mode at every number of GPUs; the default repeated on the most GPUs;
    tp_invariant at twice the batch as well, where it promises the same bits."""
    found = []
    for engine in engines:
        for kernels, gpus in itertools.product(KERNELS[engine], ranks):
            batches = [(sizes["batch"], 0)]
            if gpus == max(ranks) and kernels == "default":
                batches.append((sizes["batch"], 1))
            if kernels == "tp_invariant":
                batches.append((2 * sizes["batch"], 0))
            for batch, repeat in batches:
                found.append(Job(values_of(model, engine, kernels, gpus, batch, repeat, sizes)))
    return found


def values_of(model: str, engine: str, kernels: str, gpus: int, batch: int, repeat: int,
              sizes: dict[str, int]) -> dict[str, Any]:  # fmt: skip
    """A setting as plain values."""
    python = os.environ.get(f"PYTHON_{engine.upper()}")
    return {
        "backend": {"name": engine, "python": python, **OPTIONS[engine]},
        "model": {"name": "local", "path": model},
        "task": {"name": "recall", "limit": sizes["items"]},
        "batch_size": batch,
        "kernels": kernels,
        "gpus": gpus,
        "max_new_tokens": sizes["tokens"],
        "repeat": repeat,
        "timeout_s": 400.0,
        # As many for every number of ranks: on a CPU they are part of the bits.
        "threads": 4 if gpu_names() else 1,
    }


def one(values: dict[str, Any], folder: Path) -> int:
    """Plan and execute one run in this process; its last line of output is a JSON record."""
    announce()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        plan = plan_run(setting_from(values))
    except (SettingError, OSError) as error:
        print(json.dumps({"status": "refused", "reason": str(error)}))
        return 2
    status = execute(plan, folder / "runs", Lines(), Job(values).label)
    reason = json.loads((folder / "runs" / plan.run_id / "run.json").read_text())["reason"]
    print(json.dumps({"status": status, "reason": reason, "id": plan.run_id}))
    return int(status == "failed")


class Crew:
    """Runs jobs as processes, so many at a time, each with the GPUs it is given."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.end = folder, time.monotonic() + seconds
        self.results: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def run(self, todo: list[Job], together: int, gpus: list[list[int]]) -> None:
        """gpus: for each job in turn, the GPUs it sees; empty where there are none."""
        with ThreadPoolExecutor(together) as pool:
            for number, job in enumerate(todo):
                pool.submit(self._one, job, gpus[number % len(gpus)] if gpus else [])

    def _one(self, job: Job, gpus: list[int]) -> None:
        began = time.monotonic()
        left = self.end - began
        result = {"status": "not run", "reason": "no time left"}
        if left > 30:
            result = self._process(job, gpus, left)
        result["seconds"] = round(time.monotonic() - began, 1)
        with self.lock:
            self.results[job.label] = result
            print(f"{job.label}: {json.dumps(result)}", flush=True)
            write_json(self.folder / "jobs.json", self.results)

    def _process(self, job: Job, gpus: list[int], left: float) -> dict[str, Any]:
        values = {**job.values, "timeout_s": min(job.values["timeout_s"], left - 10)}
        environment = dict(os.environ)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        extra = os.environ.get(f"PYTHONPATH_{values['backend']['name'].upper()}")
        if extra:
            paths = [os.environ.get("PYTHONPATH", ""), extra]
            environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        command = [sys.executable, "-m", "experiments.gpucount.study", "--one"]
        done = subprocess.run(
            [*command, json.dumps(values), str(self.folder)],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        try:
            return dict(json.loads(done.stdout.strip().splitlines()[-1]))
        except (IndexError, ValueError):
            return {"status": "failed", "reason": done.stderr.strip()[-600:]}


def main(words: list[str]) -> int:
    """Do all jobs and write STORE/study.json; 1 when a run failed."""
    if words[0] == "--one":
        return one(json.loads(words[1]), Path(words[2]))
    model, folder, *rest = words
    given = dict(word.split("=") for word in rest if "=" in word)
    engines = next((word.split(",") for word in rest if "=" not in word), list(ENGINES))
    ranks = [int(number) for number in given.pop("ranks", "1,2").split(",")]
    sizes = {**SIZES, **{key: int(value) for key, value in given.items()}}
    store, there = Path(folder), len(gpu_names())
    store.mkdir(parents=True, exist_ok=True)
    todo = jobs(str(Path(model).absolute()), engines, ranks, sizes)
    crew = Crew(store, sizes["seconds"])
    for count in ranks:
        own = [job for job in todo if job.values["gpus"] == count]
        seats = [list(range(i, i + count)) for i in range(0, there - count + 1, count)]
        crew.run(own, sizes["singles" if count == 1 else "pairs"], seats)
    results = [crew.results.get(job.label, {}) for job in todo]
    ids = [r["id"] for r in results if r.get("status") in ("complete", "skipped", "failed")]
    write_json(store / "study.json", {"name": "gpucount", "seed": 0, "runs": ids})
    bad = [job.label for job, r in zip(todo, results, strict=True) if r.get("status") == "failed"]
    print(f"{len(ids)} runs, failed: {bad}", flush=True)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
