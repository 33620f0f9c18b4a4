"""What rounding does: sums in other orders, rows in other batches, keys in other blocks.

    python -m experiments.floating_point.run OUT [--device cpu|cuda] [--threads 1]
    python -m experiments.floating_point.run OUT --draw        the figures and README.md again

Writes sums.csv, batches.csv, split.csv, machine.json, the figures and README.md to OUT. A part that
fails is printed with its reason and the others go on.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from nondet.environment import cpu_name, gpu_names, versions
from nondet.runs import write_json


def measure(out: Path, device: str, threads: int) -> int:
    """Run the parts; how many failed."""
    import torch

    from experiments.floating_point import batches, operations, split, sums
    from nondet.precision.switches import set_switches

    set_switches(tf32=False, reduced_precision=True, threads=threads)
    sizes = operations.GPU if device == "cuda" else operations.CPU
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "sums": lambda: sums.rows(device),
        "batches": lambda: batches.rows(sizes, device),
        "split": lambda: split.rows(sizes, device),
    }
    failed = 0
    for name, part in parts.items():
        began = time.perf_counter()
        try:
            pd.DataFrame(part()).to_csv(out / f"{name}.csv", index=False)
        except Exception:
            traceback.print_exc()
            failed += 1
        print(f"floating_point {name}: {time.perf_counter() - began:.1f} s", flush=True)
    write_json(out / "machine.json", {
        "device": gpu_names()[0] if device == "cuda" else cpu_name(),
        "threads": threads,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "versions": versions(("torch", "triton", "numpy")),
    })  # fmt: skip
    return failed


def main() -> int:
    """Measure, then draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--draw", action="store_true", help="only the figures, from the CSVs there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0 if options.draw else measure(options.out, options.device, options.threads)
    from experiments.floating_point import figures, words

    figures.draw(options.out)
    (options.out / "README.md").write_text(words.page(options.out))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
