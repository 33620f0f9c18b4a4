"""Every kernel that the plans can choose, compiled for sm_90 on a CPU: does it fit an H200?

    PYTHONPATH=.:kernels:kernels/bench python kernels/bench/compile_plans.py OUT.csv [operation ...]

One line a compiled kernel: the first call that asked for it, shared memory, registers a thread,
bytes a thread spills, whether an H200 could start it, seconds to compile (empty where Triton's
cache on disk had it). A line with fits=False is a plan that gave way; the call went on to the next
one that ``matmul_launch.fitting`` offers, which has its own line. Exit code 1 if a call found none.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import triton
from compile_cases import Case, cases
from offline import Compiled, Recorder, offline
from triton.errors import TritonError


def compile_all(work: Iterable[Case], recorder: Recorder) -> list[tuple[Case, str]]:
    """Compile what each case starts; (case, error) of those that no plan served."""
    failed = []
    for case in work:
        recorder.label = case
        try:
            case.call()
        except (RuntimeError, TritonError) as error:
            failed.append((case, f"{type(error).__name__}: {str(error)[-300:]}"))
    return failed


NAMES = ["operation", "dtype", "sizes", "kernel", "plan", "warps", "stages", "shared_bytes",
         "registers", "spill_bytes", "fits", "seconds", "target", "triton"]  # fmt: skip


def line(one: Compiled) -> dict[str, Any]:
    """A line of the table."""
    case: Case = one.label
    plan = " ".join(f"{k}={str(v).rsplit('.', 1)[-1]}" for k, v in one.constants.items())
    values = (case.operation, str(case.dtype)[6:], case.sizes, one.kernel, plan, one.warps,
              one.stages, one.shared, one.registers, one.spill_bytes, one.fits,
              round(one.seconds, 2) or "", "sm_90", triton.__version__)  # fmt: skip
    return dict(zip(NAMES, values, strict=True))


def main() -> int:
    path, wanted = Path(sys.argv[1]), sys.argv[2:]
    with offline() as recorder:
        failed = compile_all((c for c in cases() if not wanted or c.operation in wanted), recorder)
        found = [line(one) for one in recorder.compiled]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, NAMES)
        writer.writeheader()
        writer.writerows(found)
    for case, error in failed:
        print("NO PLAN", case.operation, case.dtype, case.sizes, error)
    tight = sum(not one["fits"] for one in found)
    spills = [one for one in found if one["spill_bytes"]]
    print(len(found), "kernels,", tight, "gave way for want of memory,", len(spills), "spill")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
