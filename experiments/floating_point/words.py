"""The page of one machine's floating-point demonstrations, every number from its CSVs.

python -m experiments.floating_point.run OUT --draw      writes OUT/README.md with the figures
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from experiments.markdown import table

EXPLAINED = {
    "sums": """Adding floats rounds after every step, so the order decides which digits are lost.
The eight numbers are 1e-10, 1e-5, 0.01, 1 and their opposites: they add up to exactly 0. `error`
is the largest distance from the exact sum of the same (rounded) numbers, relative to the largest
number. Fewer different sums in a narrow format do not mean a better one: it has fewer numbers to
land on, farther apart. A sum of normal numbers cut into 1, 2, 4, ... pieces is what a kernel does
when it shares a row out among more programs.""",
    "batches": """One row is asked for alone and among more rows. Mathematically it is the same row.
`from` is the smallest number of rows at which its bits are others; then how many elements differ at
most, of how many. Each case was called {calls} times: in {same} of {cases} cases all calls gave the
same bits{noise}. Where bits change with the batch it is rarely chance: the shape chooses another
order of additions.""",
    "split": """The last 48 of 128 tokens attend to all before them. A kernel that cuts the 80
cached keys and the 48 new ones into blocks of 32 separately takes 3 + 2 blocks, and 4 blocks when
all 128 are new: `by hand` does just that in plain PyTorch. With cuts at fixed places it does not
matter what was cached, and both sides are the same call: that row can only show that a call repeats
itself. `torch's sdpa` and `ours` are called in two ways, with 128 and with 48 queries.""",
    "accuracy": """Equal bits could be bought with worse ones. Distance of one row from float64,
relative to its norm; `best` is float64 rounded once to the format.""",
}


def page(out: Path) -> str:
    """README.md of a folder with sums.csv, batches.csv, split.csv and machine.json."""
    machine = json.loads((out / "machine.json").read_text())
    sums, batches, split = (
        pd.read_csv(out / f"{name}.csv") for name in ("sums", "batches", "split")
    )
    parts = [f"# Floating point on {machine['device']}\n", _head(machine)]
    parts += ["## Orders of adding\n", EXPLAINED["sums"] + "\n", _sums(sums), _figure("sums")]
    parts += ["## One row, alone and among others\n", _explained(batches)]
    parts += [_moves(batches), _sentence(batches), _figure("grid"), _figure("product")]
    parts += ["## 80 cached and 48 new tokens, or 128 new\n", EXPLAINED["split"] + "\n"]
    parts += [_split(split), _figure("split")]
    parts += ["## Accuracy beside invariance\n", EXPLAINED["accuracy"] + "\n"]
    parts += [_accuracy(batches), _figure("accuracy")]
    return "\n".join(parts)


def _head(machine: dict[str, object]) -> str:
    versions = machine["versions"]
    assert isinstance(versions, dict)
    gpu = "NVIDIA" in str(machine["device"])
    names = ("torch", "triton") if gpu else ("torch",)
    named = ", ".join(f"{name} {versions[name]}" for name in names)
    place = "" if gpu else f", {machine['threads']} thread, {machine['capability']}"
    return (
        f"{named}{place}. Made by "
        "[experiments/floating_point](../../../../experiments/floating_point/README.md); the "
        "numbers are in the CSVs beside this page.\n"
    )


def _figure(name: str) -> str:
    return f"![{name}](figures/{name}.png)\n"


def _sums(sums: pd.DataFrame) -> str:
    rows = [
        [r.numbers, r.dtype, r.how, f"{r.orders:,}", r.distinct, f"{r.largest_error:.1e}"]
        for r in sums.itertuples()
    ]
    return table(["numbers", "format", "orders", "how many", "different sums", "error"], rows)


def change(part: pd.DataFrame) -> str:
    """``from N: k of n`` for the smallest size with other bits, or ``no``."""
    moved = part[part["differing"] > 0]
    if part["differing"].isna().all():
        return f"not run: {part['reason'].iloc[0]}"
    if moved.empty:
        return f"no, up to {int(part['rows'].max())}"
    most = int(moved["differing"].max())
    return f"from {int(moved['rows'].min())}: {most:,} of {int(moved['elements'].iloc[0]):,}"


def _explained(batches: pd.DataFrame) -> str:
    known = batches[batches["again"].notna()]
    noisy = known[known["again"] > 0]
    listed = [
        f"{r.operation}, {r.dtype}, {r.kernels} kernels, {r.rows} at a time ({int(r.again)} calls)"
        for r in noisy.itertuples()
    ]
    return (
        EXPLAINED["batches"].format(
            calls=int(known["calls"].iloc[0]),
            same=len(known) - len(noisy),
            cases=len(known),
            noise="; not in " + "; ".join(listed) if listed else "",
        )
        + "\n"
    )


def _moves(batches: pd.DataFrame) -> str:
    rows = []
    for (operation, dtype), part in batches.groupby(["operation", "dtype"], sort=False):
        cells = [change(part[part["kernels"] == kernels]) for kernels in ("default", "invariant")]
        rows.append([operation, dtype, *cells])
    return table(["operation", "format", "torch's kernels", "invariant kernels"], rows)


def _sentence(batches: pd.DataFrame) -> str:
    said = []
    for kernels, name in (("default", "torch's kernels"), ("invariant", "the invariant kernels")):
        part = batches[(batches["kernels"] == kernels) & batches["differing"].notna()]
        groups = part.groupby(["operation", "dtype"])["differing"].max()
        said.append(f"{int((groups > 0).sum())} of {len(groups)} with {name}")
    failed = int(batches["differing"].isna().sum())
    rest = f"; {failed} cases did not run, with the reason in the CSV" if failed else ""
    return f"Operations and formats whose row changes: {', '.join(said)}{rest}.\n"


def _split(split: pd.DataFrame) -> str:
    rows = [
        [r.way, r.dtype, f"{r.differing:,} of {r.elements:,}", f"{r.largest:.1e}"]
        for r in split.itertuples()
    ]
    return table(["way", "format", "elements that differ", "by at most"], rows)


def _accuracy(batches: pd.DataFrame) -> str:
    alone = batches[(batches["rows"] == 1) & batches["error"].notna()]
    rows = []
    for (operation, dtype), part in alone.groupby(["operation", "dtype"], sort=False):
        errors = part.set_index("kernels")["error"]
        cells = [f"{errors[k]:.2e}" if k in errors else "" for k in ("default", "invariant")]
        rows.append([operation, dtype, *cells, f"{part['floor'].iloc[0]:.2e}"])
    return table(["operation", "format", "torch's kernels", "invariant kernels", "best"], rows)
