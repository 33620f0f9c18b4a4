"""What nondet costs beside a bare ``model.generate`` loop over the same items.

    python experiments/bench/overhead.py [--items 96] [--rounds 2]

Runs both in fresh processes, in the order A B A B, on the default model (bf16, waves of 4), and
writes results/bench/overhead.csv. Shares are of nondet's wall time: ``outside`` is the time outside
generation and model load beyond what the bare process spends there (interpreter, imports).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from nondet.environment import cpu_count, cpu_name, versions
from nondet.models import find_model
from nondet.runs import read_run
from nondet.settings import ModelSetting, TaskSetting
from nondet.tasks import load_task
from nondet.workload import encode

ROOT = Path(__file__).parents[2]
BATCH, TOKENS = 4, 48

BARE = """
import json, sys, time
import torch, transformers
job = json.load(open(sys.argv[1]))
torch.set_num_threads(job["threads"])
transformers.logging.set_verbosity_error()
began = time.perf_counter()
model = transformers.AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.bfloat16).eval()
load = time.perf_counter() - began
began, tokens = time.perf_counter(), 0
for start in range(0, len(job["prompts"]), job["batch"]):
    wave = job["prompts"][start:start + job["batch"]]
    width = max(map(len, wave))
    ids = torch.tensor([[2] * (width - len(p)) + p for p in wave])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in wave])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=job["tokens"],
                             do_sample=False, pad_token_id=2)
    tokens += out[:, width:].numel()
print(json.dumps({"load": load, "generate": time.perf_counter() - began}))
"""


def watched(command: list[str], cwd: Path) -> tuple[float, float, str]:
    """Wall seconds, peak memory in MB (with children; Linux), and what the process printed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    peak = [0.0]

    def watch() -> None:
        parent = psutil.Process(process.pid)
        while process.poll() is None:
            total = 0
            try:
                for one in [parent, *parent.children(recursive=True)]:
                    # A page shared by two processes counts once, half in each.
                    total += one.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                pass
            peak[0] = max(peak[0], total / 1e6)
            time.sleep(0.5)

    thread = threading.Thread(target=watch)
    thread.start()
    out, _ = process.communicate()
    wall = time.perf_counter() - began
    thread.join()
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return wall, peak[0], out


def bare(folder: Path, items: int) -> dict[str, float]:
    """One run of the bare loop."""
    model = find_model(ModelSetting())
    prompts = [item.prompt for item in load_task(TaskSetting(limit=items)).items]
    job = {
        "model": str(model.path),
        "prompts": encode(model, prompts),
        "threads": cpu_count(),
        "batch": BATCH,
        "tokens": TOKENS,
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "bare.py").write_text(BARE)
    wall, peak, out = watched([sys.executable, "bare.py", "job.json"], folder)
    told = json.loads(out.splitlines()[-1])
    return {"wall": wall, "memory": peak, **told}


def ours(folder: Path, items: int) -> dict[str, float]:
    """One run of nondet, report left out: a study writes it once, not once a run."""
    words = [f"task.limit={items}", f"max_new_tokens={TOKENS}", f"batch_size={BATCH}"]
    command = [sys.executable, "-m", "nondet.run", *words, "report=false", f"outputs={folder}/out"]
    wall, peak, _ = watched(command, ROOT)
    run = read_run(next((folder / "out" / "runs").glob("[!.]*")))
    generate, load = run.record["wall_s"], run.record["load_s"]
    return {"wall": wall, "memory": peak, "load": load, "generate": generate}


def main() -> None:
    """Run A B A B and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"bare": [], "nondet": []}
    for _ in range(args.rounds):
        for name, run in (("bare", bare), ("nondet", ours)):
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(run(Path(folder), args.items))
                print(name, found[name][-1], flush=True)
    middle = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in found.items()
    }
    a, b = middle["bare"], middle["nondet"]
    outside = (b["wall"] - b["generate"] - b["load"]) - (a["wall"] - a["generate"] - a["load"])
    rows = [
        ("bare wall", a["wall"], "s"),
        ("nondet wall", b["wall"], "s"),
        ("nondet outside generation and load, beyond bare", outside, "s"),
        ("the same as a share of nondet's wall time", outside / b["wall"], "1"),
        ("generation, nondet over bare", b["generate"] / a["generate"], "1"),
        ("wall time, nondet over bare", b["wall"] / a["wall"], "1"),
        ("peak memory beyond bare, all processes", b["memory"] - a["memory"], "MB"),
    ]
    known = versions(("torch", "transformers"))
    where = f"{cpu_name()}, {cpu_count()} cores, torch {known['torch']}"
    target = ROOT / "results" / "bench" / "overhead.csv"
    with target.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["figure", "value", "unit", "items", "rounds", "hardware"])
        for name, value, unit in rows:
            writer.writerow([name, f"{value:.4g}", unit, args.items, args.rounds, where])
            print(f"{name}: {value:.4g} {unit}")


if __name__ == "__main__":
    main()
