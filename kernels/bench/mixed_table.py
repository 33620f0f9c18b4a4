"""The plan table of the mixed product, from the times of ``bench_mixed.py --tune``.

    python kernels/bench/mixed_table.py kernels_mixed_plans.csv OUT.json

The fastest plan of every layer at every number of rows; OUT goes into ``nondet_kernels/tables``.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path


def choose(rows: list[dict[str, str]]) -> dict[str, list[list[int | bool]]]:
    """ "N,K" -> [largest number of rows, *plan], ascending; the last serves all above."""
    best: dict[str, dict[int, tuple[float, list[int | bool]]]] = {}
    for row in rows:
        if not row["us"]:
            continue
        numbers = [int(row[name]) for name in ("bm", "bn", "warps", "stages")]
        how = [*numbers, row["swap"] == "True", int(row["unroll"])]
        layer = best.setdefault(f"{row['n']},{row['k']}", {})
        found = (float(row["us"]), how)
        m = int(row["m"])
        layer[m] = min(layer.get(m, found), found)
    return {
        name: [[m if m < max(layer) else 1 << 30, *layer[m][1]] for m in sorted(layer)]
        for name, layer in best.items()
    }


def main(path: Path, out: Path) -> None:
    """Read the times, write the table, one layer a line."""
    with path.open(newline="") as file:
        found = choose(list(csv.DictReader(file)))
    lines = [f'  "{name}": {json.dumps(rows)}' for name, rows in found.items()]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
