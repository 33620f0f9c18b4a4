"""Turn CSV files of tune_matmul.py into the frozen table of plans.

    python kernels/bench/make_table.py kernels/nondet_kernels/tables/hopper.json TUNE.csv[.gz] ...

For each shape and number of rows, the plan with the best ratio to torch in its own run.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path

from nondet_kernels.matmul_plan import slices

UPPER = {1: 8, 4096: 4096, 8192: 1 << 30}
"""Rows a measured number stands for, where that is not itself."""
LARGE = [UPPER[8192], "stream", 128, 256, 64, 8, 3, False, 1]
"""For the vocabularies, which were not measured above 512 rows."""
Key = tuple[int, int, int]


def read(paths: list[str]) -> dict[Key, tuple[float, str]]:
    """(N, K, M) -> best ratio to torch in its own run, and that plan."""
    best: dict[Key, tuple[float, str]] = {}
    for path in paths:
        with gzip.open(path, "rt") if path.endswith(".gz") else Path(path).open() as file:
            for row in csv.DictReader(file):
                n, k, m, s = (int(row[c]) for c in ("n", "k", "m", "s"))
                # Plans of earlier layouts, with warp specialisation, end with True.
                if s != slices(n, k)[0] or row["plan"].endswith("/True"):
                    continue
                ratio = float(row["torch_us"]) / float(row["us"])
                best[n, k, m] = max(best.get((n, k, m), (0.0, "")), (ratio, row["plan"]))
    return best


def main() -> None:
    plans: dict[str, list[list[object]]] = {}
    for (n, k, m), (_, name) in sorted(read(sys.argv[2:]).items()):
        kernel, _, bm, bn, bk, warps, stages, swap, last = name.split("/")
        sizes = [int(x) for x in (bm, bn, bk, warps, stages)]
        shared = int(last) if last.isdigit() else 1
        plans.setdefault(f"{n},{k}", []).append(
            [UPPER.get(m, m), kernel, *sizes, swap == "True", shared]
        )
    for rows in plans.values():
        if rows[-1][0] != LARGE[0]:
            rows.append(LARGE)
    lines = [f'    "{name}": {json.dumps(rows)}' for name, rows in plans.items()]
    text = '{\n  "plans": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    Path(sys.argv[1]).write_text(text)


if __name__ == "__main__":
    main()
