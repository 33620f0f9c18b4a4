"""Which factor alone moves bits, and which moves tokens: the table of experiments.batch_size.study.

    python -m experiments.batch_size.causes OUT STUDY_FOLDER

One row a comparison of two runs that differ in one factor only. ``items``: those that ended in no
error on either side; ``diverged``: of them with another token, with Wilson's interval of the share;
``bits``: items in which a token or the
log-probability of an equal token before it differs; ``first``: earliest and median diverging
token, from 0; ``logprob``: largest difference of the log-probabilities before answers part.
A cure shows nothing by itself: the row ``dtype`` must differ (the instrument sees), the row
``repeat`` must not (the instrument is quiet).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.batch_size.words import page
from experiments.markdown import keep_machine
from nondet.csv_files import save_csv
from nondet.metrics.intervals import wilson
from nondet.report.panel import Panel, save
from nondet.report.style import COLUMN, DTYPE_COLOURS, INK, MUTED, PAPER, canvas, house
from nondet.runs import Run
from nondet.study import load_study

FACTORS = ("cache", "padding", "batch_size", "attention", "dtype", "kernels")
DEFAULTS = {"cache": "dynamic"}
# Compared with the base of a context, or with a named other change of it.
BASE: dict[str, Any] = {"padding": "fixed", "cache": "dynamic", "attention": "sdpa"}


@dataclass(frozen=True)
class Step:
    """One comparison: what the factor is called, and both sides as changes of the base."""

    factor: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    what: str


def steps(large: int) -> list[Step]:
    """All one-factor steps of a context; ``large`` is the base's batch size."""
    one = {"batch_size": 1}
    return [
        Step("cache", {}, {"cache": "none"}, "KV cache growing / none"),
        Step("cache", {}, {"cache": "static"}, "KV cache growing / static"),
        Step("padding", {**one, "padding": "none"}, one, "padding none / to the longest, batch 1"),
        Step("padding", {"padding": "wave"}, {}, f"padding wave / to the longest, batch {large}"),
        Step("batch_size", one, {}, f"batch 1 / {large}, equal padding"),
        Step("batch_size", {}, {"batch_size": 4 * large},
             f"batch {large} / {4 * large}, equal padding"),
        Step("attention", {}, {"attention": "eager"}, "attention sdpa / eager"),
    ]  # fmt: skip


def value_of(run: Run, name: str) -> Any:
    """A factor of a run, with the backend's default where nobody asked."""
    found = run.factors.get(name)
    return DEFAULTS.get(name) if found is None else found


def find(runs: Sequence[Run], repeat: int = 0, **wanted: Any) -> Run | None:
    """The run with exactly these values of FACTORS and this repeat, or None."""
    for run in runs:
        if run.repeat == repeat and all(value_of(run, k) == v for k, v in wanted.items()):
            return run
    return None


def compare(a: Run, b: Run) -> dict[str, Any]:
    """The numbers of one comparison. Raises ValueError when the runs hold other items."""
    names = ["item_id", "tokens", "logprobs", "finish_reason"]
    sides = [run.table(names).to_pydict() for run in (a, b)]
    if sides[0]["item_id"] != sides[1]["item_id"]:
        raise ValueError(f"{a.folder} and {b.folder}: not the same items")
    firsts, gaps = [], []
    moved = items = 0
    rows = zip(*(side[name] for side in sides for name in names[1:]), strict=True)
    for tokens_a, logprobs_a, end_a, tokens_b, logprobs_b, end_b in rows:
        if "error" in (end_a, end_b):
            continue  # what it would have said is not known
        items += 1
        same = prefix(np.asarray(tokens_a), np.asarray(tokens_b))
        parted = same < max(len(tokens_a), len(tokens_b))
        if parted:
            firsts.append(same)
        # The log-probability at the fork belongs to two different tokens: only those before it.
        before = [np.asarray(side[:same], np.float32) for side in (logprobs_a, logprobs_b)]
        moved += parted or bool((before[0].view(np.int32) != before[1].view(np.int32)).any())
        gap = np.abs(before[0].astype(float) - before[1].astype(float))
        gaps += [float(gap[~np.isnan(gap)].max())] if not np.isnan(gap).all() else []
    share = wilson(len(firsts), items)
    return {
        "items": items,
        "diverged": len(firsts),
        "share": round(share.value, 4),
        "share_low": round(share.low, 4),
        "share_high": round(share.high, 4),
        "bits": moved,
        "first": min(firsts) if firsts else None,
        "median_first": int(np.median(firsts)) if firsts else None,
        "logprob": max(gaps, default=0.0),
    }


def prefix(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Number of equal tokens at the start."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length


def tabulate(runs: Sequence[Run]) -> pd.DataFrame:
    """All one-factor comparisons that the runs allow, the controls first."""
    # The base's; runs of one row, or of four times as many, may be missing.
    large = min(size for run in runs if (size := int(run.factors["batch_size"])) > 1)
    rows = []
    for dtype, kernels in (("bf16", "default"), ("fp32", "default"), ("bf16", "invariant")):
        context = {**BASE, "batch_size": large, "dtype": dtype, "kernels": kernels}
        base, again = find(runs, **context), find(runs, repeat=1, **context)
        name = dtype if kernels == "default" else f"{dtype}, invariant"
        if base and again:
            rows.append({"context": name, "factor": "repeat", "step": "the same, a fresh process",
                         **compare(base, again)})  # fmt: skip
        for step in steps(large):
            a = find(runs, **{**context, **step.before})
            b = find(runs, **{**context, **step.after})
            if a and b:
                rows.append({"context": name, "factor": step.factor, "step": step.what,
                             **compare(a, b)})  # fmt: skip
    bases = {
        (dtype, kernels): find(runs, **{**BASE, "batch_size": large, "dtype": dtype,
                                        "kernels": kernels})
        for dtype, kernels in (("bf16", "default"), ("fp32", "default"), ("bf16", "invariant"))
    }  # fmt: skip
    first = bases["bf16", "default"]
    for key, factor, step in (
        (("fp32", "default"), "dtype", "bf16 / FP32"),
        (("bf16", "invariant"), "kernels", "torch's kernels / invariant"),
    ):
        other = bases[key]
        if first and other:
            rows.append({"context": "bf16", "factor": factor, "step": step,
                         **compare(first, other)})  # fmt: skip
    table = pd.DataFrame(rows)
    return table.astype({"first": "Int64", "median_first": "Int64"})


def answer(table: pd.DataFrame) -> pd.DataFrame:
    """One row a context and factor: does it alone move bits, does it move tokens?

    A factor with several steps moves what any of its steps moves; ``diverged`` is the most.
    """
    grouped = table.groupby(["context", "factor"], sort=False)
    most = table.loc[grouped["diverged"].idxmax()]
    return pd.DataFrame(
        {
            "context": most["context"].to_numpy(),
            "factor": most["factor"].to_numpy(),
            "moves_bits": (grouped["bits"].max() > 0).map({True: "yes", False: "no"}).to_numpy(),
            "moves_tokens": (most["diverged"] > 0).map({True: "yes", False: "no"}).to_numpy(),
            "diverged": most["diverged"].to_numpy(),
            "items": most["items"].to_numpy(),
            "share_low": most["share_low"].to_numpy(),
            "share_high": most["share_high"].to_numpy(),
        }
    )


def panel(table: pd.DataFrame) -> Panel:
    """Share of answers that part, for each step and context."""
    names = list(dict.fromkeys(table["step"]))[::-1]
    contexts = list(dict.fromkeys(table["context"]))
    with house():
        figure, axis = canvas(COLUMN, 0.42 * len(names) + 1.2)
        for place, context in enumerate(contexts):
            own = table[table["context"] == context]
            colour = DTYPE_COLOURS[context.split(",")[0]]
            hollow = "invariant" in context
            y = [names.index(step) + 0.22 * (1 - place) for step in own["step"]]
            low, high = own["share"] - own["share_low"], own["share_high"] - own["share"]
            axis.errorbar(own["share"], y, xerr=[low, high], fmt="os^"[place], color=colour,
                          mfc=PAPER if hollow else colour, elinewidth=0.8, markersize=4.5,
                          label=context)  # fmt: skip
        axis.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
        axis.set_xlim(-0.02, 1.02)
        axis.set_xlabel("share of answers that part (95 % intervals)")
        axis.grid(axis="x", color=MUTED, alpha=0.2, linewidth=0.5)
        axis.axvline(0, color=INK, linewidth=0.7)
        axis.legend(loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=3)
    alt = "Share of answers that part when one factor alone changes, in three contexts."
    return Panel("causes", "One factor at a time", alt, table, figure)


def main(words: list[str]) -> None:
    """Write both tables, the figure and README.md to OUT, and print the tables."""
    out, study = Path(words[0]), load_study([Path(words[1])])
    table = tabulate(study.complete)
    out.mkdir(parents=True, exist_ok=True)
    save_csv(table, out / "causes.csv")
    summary = answer(table)
    save_csv(summary, out / "answer.csv")
    save(panel(table), out / "figures")
    keep_machine(study.complete, out / "machine.json")
    (out / "README.md").write_text(page(out))
    print(table.to_string(index=False))
    print(summary.to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
