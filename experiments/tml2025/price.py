"""The price of invariance: seconds for one workload with default and with invariant kernels.

    python -m experiments.tml2025.price OUT.csv ENGINE MODEL [SEQUENCES BATCH TOKENS ROUNDS OPTIONS]

Half of the sequences are the prompt of the completions study, half random neighbours, in task order
in waves of BATCH, up to TOKENS new tokens each (defaults 256, 128, 100, 5). MODEL is a folder, ""
the default model; OPTIONS are the backend's own, as JSON. Each arm is a process of its own that has
loaded its model and answered one wave before the clock starts; then the arms take turns (A B, B A,
...), one at a time. Nothing else should use the machine. Appends one row a round and arm to OUT.csv
and prints the ratio of seconds: geometric mean over rounds, with Student's interval of the
logarithms. An arm that fails is said with its reason, and the other still counts.
"""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.tml2025.study import ENGINE_OPTIONS
from experiments.together import announce
from nondet.environment import child_environment, cpu_name, gpu_names
from nondet.metrics.intervals import LEVEL, Estimate
from nondet.plan import Plan, plan_run
from nondet.settings import setting_from
from nondet.waves import plan_waves
from nondet.workload import workload_from

ARMS = ("default", "invariant")
COLUMNS = ("engine", "model", "kernels", "sequences", "batch_size", "new_tokens", "options",
           "round", "seconds", "tokens", "hardware", "versions", "reason")  # fmt: skip


def ratio_of(seconds: Sequence[float], base: Sequence[float], level: float = LEVEL) -> Estimate:
    """Geometric mean of ``seconds / base`` over paired rounds, with Student's interval of the
    logarithms. One round has no interval (NaN); none gives NaN."""
    from scipy import stats

    n = len(seconds)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    logs = [math.log(a / b) for a, b in zip(seconds, base, strict=True)]
    mean = sum(logs) / n
    if n == 1:
        return Estimate(math.exp(mean), math.nan, math.nan, 1)
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * spread / math.sqrt(n)
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)


def arm() -> None:
    """One arm: load, answer one wave, then time the whole workload once a line from stdin."""
    job = json.loads(sys.stdin.readline())
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the engine prints goes to the log
    module, name = job["backend_class"].split(":")
    setting = setting_from(job["setting"])
    backend = getattr(import_module(module), name)(setting, job["model_path"])
    backend.start()
    requests = workload_from(job["workload"]).requests
    lengths = [len(request.prompt_tokens) for request in requests]
    waves = plan_waves(lengths, setting.batch_size, setting.batching, setting.padding)
    waves_of = [[requests[place] for place in wave] for wave in waves]
    backend.generate(waves_of[0])
    pipe.write(json.dumps({"kernels": backend.observed().get("invariant")}) + "\n")
    for _ in sys.stdin:
        began = time.perf_counter()
        tokens = sum(len(r.tokens) for wave in waves_of for r in backend.generate(wave))
        seconds = time.perf_counter() - began
        pipe.write(json.dumps({"seconds": seconds, "tokens": tokens}) + "\n")
    backend.close()


@contextmanager
def arm_process(plan: Plan, log: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of one arm in its backend's interpreter; ended when the block ends."""
    environment = child_environment(plan.backend.environment(plan.setting))
    command = [str(plan.python or sys.executable), "-m", "experiments.tml2025.price", "--arm"]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=errors, text=True, env=environment)  # fmt: skip
    try:
        job = {"setting": plan.setting.to_dict(), "model_path": str(plan.model.path),
               "backend_class": f"{plan.backend.__module__}:{plan.backend.__qualname__}",
               "workload": plan.workload.to_dict()}  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """The next line of an arm. Raises RuntimeError with the end of its log when it died."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(" ".join(last) or "the arm ended without a word")
    answer: dict[str, Any] = json.loads(line)
    return answer


def measure(plans: dict[str, Plan], rounds: int, logs: Path) -> dict[str, list[dict[str, Any]]]:
    """Seconds and tokens of every round by arm; an arm that died ends with its reason."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    with ExitStack() as stack:
        ready = {}
        log_of = {name: logs / f"price-{name}.log" for name in plans}
        arms = {name: stack.enter_context(arm_process(plans[name], log_of[name]))
                for name in plans}  # fmt: skip
        for name, process in arms.items():
            log = log_of[name]
            try:
                told(process, log)
            except (RuntimeError, BrokenPipeError) as error:
                print(f"price: {name} cannot run, {error}", flush=True)
                found[name].append({"reason": str(error)})
                continue
            ready[name] = (process, log)
        for number in range(rounds):
            turn = list(ready) if number % 2 == 0 else list(reversed(ready))
            for name in turn:
                process, log = ready[name]
                assert process.stdin is not None
                try:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                    found[name].append(told(process, log))
                except (RuntimeError, BrokenPipeError) as error:
                    print(f"price: {name} ended in round {number}, {error}", flush=True)
                    found[name].append({"reason": str(error)})
                    del ready[name]
                    continue
                print(f"price: round {number}, {name}: {found[name][-1]}", flush=True)
    return found


def plans_of(
    engine: str, model: str, work: Sequence[int], options: dict[str, Any]
) -> dict[str, Plan]:
    """The plan of each arm; ``work``: sequences, batch size, new tokens."""
    sequences, batch, tokens = work
    plans = {}
    for kernels in ARMS:
        setting = {
            "backend": {"name": engine, "python": os.environ.get(f"PYTHON_{engine.upper()}"),
                        **ENGINE_OPTIONS[engine], **options},
            "model": {"name": "local", "path": model} if model else {},
            "task": {"name": "completions", "copies": sequences - sequences // 2,
                     "neighbours": sequences // 2},
            # One shape for all waves, so that no wave compiles or captures anew.
            "padding": "fixed" if engine == "hf" else "wave",
            "batch_size": batch, "max_new_tokens": tokens, "kernels": kernels,
        }  # fmt: skip
        plans[kernels] = plan_run(setting_from(setting))
    return plans


def main(words: list[str]) -> None:
    """Measure both arms and append to the CSV."""
    out, engine, model = Path(words[0]), words[1], words[2]
    given = [int(word) for word in words[3:7]]
    *work, rounds = [*given, *(256, 128, 100, 5)[len(given) :]]
    options = words[7] if len(words) > 7 else "{}"
    announce()
    plans = plans_of(engine, model, work, json.loads(options))
    out.parent.mkdir(parents=True, exist_ok=True)
    found = measure(plans, rounds, out.parent)
    name = Path(model).name or "SmolLM2-135M-Instruct"
    where = ", ".join(gpu_names()) or f"{cpu_name()}, {os.cpu_count()} cores"
    rows = []
    for kernels, results in found.items():
        versions = {k: v for k, v in plans[kernels].resolved["versions"].items() if v}
        for number, result in enumerate(results):
            seconds = result.get("seconds")
            told_of = [number, seconds and round(seconds, 3), result.get("tokens")]
            fixed = [engine, name, kernels, *work, options, *told_of, where, json.dumps(versions)]
            rows.append([*fixed, result.get("reason")])
    new = not out.exists()
    with out.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows] if new else rows)
    if not any("reason" in result for results in found.values() for result in results):
        times = {arm: [r["seconds"] for r in results] for arm, results in found.items()}
        ratio = ratio_of(times["invariant"], times["default"])
        interval = f"({ratio.low:.2f} to {ratio.high:.2f}), n = {ratio.n} rounds"
        print(f"price: invariant / default {ratio.value:.2f} {interval}", flush=True)


if __name__ == "__main__":
    arm() if sys.argv[1:] == ["--arm"] else main(sys.argv[1:])
