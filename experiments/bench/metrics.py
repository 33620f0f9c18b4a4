"""Speed and memory of the analysis on synthetic studies, beside a plain pandas version.

    python experiments/bench/metrics.py                     every case at full size (minutes)
    python experiments/bench/metrics.py --scale 0.01        the same cases, small
    python experiments/bench/metrics.py --cases grid        only some cases

Cases: "grid" 12 settings x 1,000 items x 10,000 tokens with top-5 log-probabilities; "half" with
half the tokens (for the scaling); "many" 720 runs with as many tokens as "grid" in all; "pandas"
a tenth of "grid", analysed by nondet and by plain pandas. Data are written to a temporary folder
and removed. Each measurement is its own process; memory is its largest resident set; ``load`` is
the load average of the machine just before (above the number of cores others were at work, and
cpu_s says more than wall_s). The pandas
version computes less (see ``plain_pandas``), so its ratio is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from factory import END, record_of  # noqa: E402

from nondet.runs import TOKENS_SCHEMA, RunWriter, write_json  # noqa: E402

TOP_K = 5
CUT_SHARE = 0.2


@dataclass(frozen=True)
class Case:
    """Size of one synthetic study; ``tokens`` is the limit of a response."""

    name: str
    settings: int
    items: int
    tokens: int
    providers: tuple[str, ...] = ("nondet",)


CASES = (
    Case("pandas", 12, 1000, 1000, ("nondet", "pandas")),
    Case("half", 12, 1000, 5000),
    Case("grid", 12, 1000, 10000),
    Case("many", 720, 100, 1667),
)


def scaled(case: Case, scale: float) -> Case:
    """The case with fewer items; at least 8."""
    return Case(
        case.name, case.settings, max(8, round(case.items * scale)), case.tokens, case.providers
    )


def write_study(folder: Path, case: Case, seed: int = 0) -> int:
    """Write a study run by run; returns the number of tokens.

    A fifth of the responses reach the limit, the others stop in its last tenth. The first setting
    is the reference; the others leave it on nine of ten items at a log-uniform position, with
    log-probabilities that differ by rounding noise before.
    """
    rng = np.random.default_rng(seed)
    cut = rng.random(case.items) < CUT_SHARE
    spread = rng.integers(0, max(1, case.tokens // 10), case.items)
    lengths = np.where(cut, case.tokens, np.maximum(case.tokens - spread, 1))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    size = int(offsets[-1])
    base = rng.integers(10, 50_000, size, dtype=np.int32)
    base[offsets[1:][~cut] - 1] = END
    logprobs = (-rng.exponential(0.3, size)).astype(np.float32)
    ids = []
    for setting in range(case.settings):
        tokens, moved = base.copy(), logprobs
        if setting:
            moved = np.minimum(logprobs + rng.normal(0, 1e-3, size).astype(np.float32), 0)
            at = np.exp(rng.uniform(0, np.log(lengths))).astype(np.int64)
            for item in np.flatnonzero(rng.random(case.items) < 0.9):
                start, stop = offsets[item] + at[item], offsets[item + 1]
                tokens[start:stop] = rng.integers(10, 50_000, stop - start, dtype=np.int32)
        table = study_table(rng, tokens, moved, offsets, cut)
        record = record_of({"batch_size": setting + 1}, 0, [])
        record["generated_tokens"] = size
        ids.append(record["run_id"])
        writer = RunWriter(folder / "runs" / record["run_id"])
        writer.start(record)
        writer.finish(table)
    write_json(folder / "study.json", {"name": case.name, "seed": 0, "runs": ids})
    return size * case.settings


def study_table(
    rng: np.random.Generator,
    tokens: Any,
    logprobs: Any,
    offsets: Any,
    cut: Any,
) -> pa.Table:
    """Rows of tokens.parquet from flat arrays."""
    items = len(offsets) - 1
    flat = np.arange(len(tokens) * TOP_K, dtype=np.int32)
    falls = np.arange(TOP_K, dtype=np.float32) * np.float32(0.7)
    top_logprobs = (logprobs[:, None] - falls).ravel()
    top_ids = (np.repeat(tokens, TOP_K) + flat % TOP_K).astype(np.int32)
    right = rng.integers(0, 2, items)

    def lists(values: Any, width: int = 1) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array((offsets * width).astype(np.int32)), values)

    columns = {
        "item_id": [f"item-{item}" for item in range(items)],
        "sample": np.zeros(items, dtype=np.int32),
        "prompt_hash": ["0"] * items,
        "prompt_tokens": np.full(items, 100, dtype=np.int32),
        "tokens": lists(tokens),
        "finish_reason": np.where(cut, "length", "stop").tolist(),
        "text": [""] * items,
        "logprobs": lists(logprobs),
        "top_ids": lists(top_ids, TOP_K),
        "top_logprobs": lists(top_logprobs, TOP_K),
        "wave": np.zeros(items, dtype=np.int32),
        "answer": right.astype(str).tolist(),
        "outcome": np.where(right, "right", "wrong").tolist(),
        "correct": right.astype(np.int8),
        "marking_note": [""] * items,
    }
    return pa.table(columns, schema=TOKENS_SCHEMA)


def run_nondet(folder: Path) -> dict[str, float]:
    """The whole analysis."""
    from nondet.analysis import analyse
    from nondet.study import load_study

    found = analyse(load_study([folder]), 0)
    return {
        "diverged": float(found.summary["diverged"].sum()),
        "std_at_acc": float(found.std_at_acc["value"][0]),
        "largest": float(found.divergence["dlogprob_largest"].max()),
        "top1": float(found.avg_std_top1_prob["pooled"][0]),
    }


def plain_pandas(folder: Path) -> dict[str, float]:
    """Divergence from the reference, Std@Acc, largest |dlogprob| and pooled spread of the top
    probability with explode, merge and groupby: no pairs, no intervals, no curves, no forks."""
    runs = json.loads((folder / "study.json").read_text())["runs"]

    def long(run: str) -> pd.DataFrame:
        columns = ["item_id", "tokens", "logprobs"]
        path = folder / "runs" / run / "tokens.parquet"
        frame = pd.read_parquet(path, columns=columns).explode(["tokens", "logprobs"])
        frame["position"] = frame.groupby("item_id").cumcount()
        return frame.astype({"tokens": "int32", "logprobs": "float32"})

    reference = long(runs[0])
    firsts, largest = [], 0.0
    for run in runs[1:]:
        both = reference.merge(long(run), on=["item_id", "position"], suffixes=("", "_other"))
        parted = both[both["tokens"] != both["tokens_other"]]
        first = parted.groupby("item_id")["position"].min()
        firsts.append(first)
        end = both["item_id"].map(first).fillna(np.inf)
        before = both[both["position"] < end]
        largest = max(largest, (before["logprobs"] - before["logprobs_other"]).abs().max())
    index = pd.concat(firsts).groupby(level=0).min()
    common = []
    for run in runs:
        frame = long(run)
        end = frame["item_id"].map(index).fillna(np.inf)
        common.append(frame[frame["position"] < end])
    joined = pd.concat(common)
    joined["probability"] = np.exp(joined["logprobs"].astype("float64"))
    spread = joined.groupby(["item_id", "position"])["probability"].std()
    correct = [
        pd.read_parquet(folder / "runs" / run / "tokens.parquet", columns=["correct"])["correct"]
        for run in runs
    ]
    return {
        "diverged": float(sum(len(first) for first in firsts)),
        "std_at_acc": float(np.std([part.mean() for part in correct], ddof=1)),
        "largest": float(largest),
        "top1": float(spread.mean()),
    }


def measure(folder: Path, provider: str) -> dict[str, Any]:
    """Run one provider in this process; wall time, CPU time and largest resident set."""
    started = time.perf_counter()
    numbers = run_nondet(folder) if provider == "nondet" else plain_pandas(folder)
    wall = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall_s": wall, "cpu_s": cpu, "peak_mb": peak_mb(), "numbers": numbers}


def peak_mb() -> float:
    """Largest resident set of this process. Not ru_maxrss, which a child inherits."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def hardware() -> str:
    """Processor and cores, in words."""
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()} x {len(names)}"


def versions() -> str:
    """Versions that decide the time."""
    return (
        f"python {platform.python_version()}, numpy {np.__version__}, pandas {pd.__version__}, "
        f"pyarrow {pa.__version__}"
    )


def bench(case: Case, repeats: int) -> list[dict[str, Any]]:
    """All measurements of one case, on data written once."""
    rows = []
    folder = Path(tempfile.mkdtemp(prefix="nondet-bench-"))
    try:
        tokens = write_study(folder, case)
        size = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
        for provider in case.providers:
            for repeat in range(repeats):
                load = os.getloadavg()[0]
                command = [sys.executable, __file__, "--measure", str(folder), provider]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                row = {
                    "case": case.name,
                    "provider": provider,
                    "repeat": repeat,
                    "load": round(load, 1),
                    "settings": case.settings,
                    "items": case.items,
                    "tokens": tokens,
                    "disk_mb": round(size / 2**20),
                    "wall_s": round(found["wall_s"], 2),
                    "cpu_s": round(found["cpu_s"], 2),
                    "peak_mb": round(found["peak_mb"]),
                    **{key: float(f"{value:.9g}") for key, value in found["numbers"].items()},
                    "hardware": hardware(),
                    "versions": versions(),
                }
                print(row, flush=True)
                rows.append(row)
    finally:
        shutil.rmtree(folder)
    return rows


def main() -> None:
    """Measure the cases and write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the items")
    parser.add_argument("--cases", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, help="CSV file")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "PROVIDER"))
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(Path(options.measure[0]), options.measure[1])))
        return
    rows = []
    for case in CASES:
        if case.name in options.cases:
            rows += bench(scaled(case, options.scale), options.repeats)
    table = pd.DataFrame(rows)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(options.out, index=False)
    print(table.drop(columns=["hardware", "versions"]).to_string())


if __name__ == "__main__":
    main()
