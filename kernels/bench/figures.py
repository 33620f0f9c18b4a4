"""The figures of kernels/README.md from results/bench, as they stand there.

    python kernels/bench/figures.py [RESULTS_FOLDER]

Ratios are times of the other over ours, so above one ours is faster: geometric mean over sizes, in
brackets the smallest and the largest. ``kernels/tests/test_figures.py`` compares with the page.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "results" / "bench"
WIDTHS = {"8B": 128, "Qwen2.5-1.5B": 128, "SmolLM2-135M": 64}
Row = dict[str, str]


def load(name: str, folder: Path = BENCH) -> list[Row]:
    """Lines of kernels_NAME.csv."""
    with (folder / f"kernels_{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def spread(values: Sequence[float]) -> str:
    """Geometric mean (smallest to largest)."""
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def against(rows: Sequence[Row], column: str) -> str:
    """Times in ``column`` over ours; a dash where none was measured."""
    found = [float(row[column]) / float(row["us"]) for row in rows if row[column]]
    return spread(found) if found else "-"


def line(name: str, rows: Sequence[Row], other: str, bar: float | None) -> str:
    """| operation, sizes | against | ratio | vLLM's own over ours | bar |"""
    ratios = [float(row["ratio"]) for row in rows]
    said = "" if bar is None else f"{bar:.2f} {'met' if mean(ratios) >= bar else '**not met**'}"
    cells = [f"{name}, {len(rows)} sizes", other, spread(ratios), against(rows, "vllm_us"), said]
    return "| " + " | ".join(cells) + " |"


def operations(folder: Path = BENCH) -> list[str]:
    """The table's lines up to the column of what stands between."""
    matmul, rows, attention = (load(n, folder) for n in ("matmul", "rows", "attention"))

    def products(low: int, high: int, layout: str) -> list[Row]:
        return [r for r in matmul if r["layout"] == layout and low <= int(r["m"]) <= high]

    def of(name: str) -> list[Row]:
        return [r for r in rows if r["op"] == name]

    def phase(name: str, kept: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        return [r for r in attention if r["phase"] == name and kept(r)]

    better = "better of flash, cuDNN"
    found = []
    for shown, layout, bars in (("matmul", "fused", (1.0, 0.92)),
                                ("k and gate apart", "split", (None, None))):  # fmt: skip
        for (low, high), bar in zip(((1, 64), (128, 8192)), bars, strict=True):
            sizes = products(low, high, layout)
            found.append(line(f"{shown}, M {low} to {high}", sizes, "torch.mm", bar))
    least = {"rms_norm": 1.0, "softmax": 1.0, "log_softmax": 1.0, "mean": 1.0}
    for name in ("rms_norm", "layer_norm", "softmax", "log_softmax", "mean", "mean_outer", "sum",
                 "argmax"):  # fmt: skip
        shown = {"mean_outer": "mean over the first dimension"}.get(name, name)
        found.append(line(shown, of(name), "torch", least.get(name)))
    found.append(line("attention, decode", phase("decode"), better, 0.95))
    for keys in (512, 4096, 32768):
        one = phase("decode", lambda r, keys=keys: int(r["keys"]) == keys)  # type: ignore[misc]
        found.append(line(f"decode, {keys:,} keys", one, better, None))
    found.append(line("attention, prefill", phase("prefill"), better, 0.9))
    for width in (128, 64):
        one = phase("prefill", lambda r, w=width: WIDTHS[r["model"]] == w)  # type: ignore[misc]
        found.append(line(f"prefill, heads {width} wide", one, better, None))
    return found


def models(folder: Path = BENCH) -> list[str]:
    """Lines of the whole model, without graphs."""
    return [f"| batch {r['batch_size']}, {r['turns']} pairs of turns | {r['default_tokens_s']} | "
            f"{r['invariant_tokens_s']} | {float(r['ratio']):.2f} ({float(r['ratio_low']):.2f} to "
            f"{float(r['ratio_high']):.2f}) |" for r in load("model", folder)]  # fmt: skip


def fp32_tiles(folder: Path = BENCH) -> list[str]:
    """FP32 products: microseconds in tiles of 16 rows, as they are now, and torch's."""
    rows, found = [r for r in load("fp32", folder) if r["study"] == "product"], []
    for n, k in dict.fromkeys((r["n"], r["k"]) for r in rows):
        cells = []
        for m in ("1", "8", "16"):
            mine = {(r["bm"], r["bn"], r["stages"], r["warps"]): r for r in rows
                    if (r["n"], r["k"], r["m"]) == (n, k, m)}  # fmt: skip
            now = mine[("1", "32", "6", "1") if m == "1" else ("4", "32", "6", "2")]
            old = mine["16", "32", "3", "4"]
            cells.append(f"{old['us']}, {now['us']}, {now['torch_us']}")
        found.append(f"| ({n}, {k}) | " + " | ".join(cells) + " |")
    return found


def errors(folder: Path = BENCH, limit: float = 1.1) -> list[str]:
    """Operations and types whose error, mean or maximum, is above ``limit`` of torch's."""
    return [f"{r['op']} {r['dtype']} {kind} {r[f'{kind}_ratio']}: {r[f'{kind}_ulp']} against "
            f"{r[f'torch_{kind}_ulp']} units, {r['judged']} draws"
            for name in ("bits", "attention_bits") for r in load(name, folder)
            for kind in ("mean", "max")
            if r[f"{kind}_ratio"] and float(r[f"{kind}_ratio"]) > limit]  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH
    for part in (operations, models, fp32_tiles, errors):
        print(*part(folder), "", sep="\n")


if __name__ == "__main__":
    main()
