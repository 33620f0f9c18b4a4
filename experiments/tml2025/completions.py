"""How many different completions one prompt got, and where they part.

    python -m experiments.tml2025.completions OUT STUDY_FOLDER [STUDY_FOLDER ...]

One row a run: ``completions`` asked for (n), ``unique`` among them, how often the commonest came,
``same_tokens``: the first tokens that all share; parts.csv: the token, from 0, at which each leaves
the commonest (a completion that ends earlier leaves it at its end), of the first run of each
setting at temperature 0. ``unique`` is a count of this
run; the statistic is the share that is not the commonest one, whose interval counts waves,
because the completions of a wave share its fate: ``equal_waves`` of one size are worth as much as
the ``waves`` there were. Neighbours are left out.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.markdown import keep_machine
from experiments.tml2025.figure import panel
from experiments.tml2025.words import page
from nondet.csv_files import save_csv
from nondet.metrics.intervals import Estimate, largest_unseen, wilson
from nondet.report.panel import save
from nondet.runs import Run
from nondet.study import load_study, run_folders
from nondet.tasks.completions import COPY

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Completions:
    """The completions of one run and the wave each came from, in task order."""

    tokens: tuple[Tokens, ...]
    waves: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def counts(self) -> Counter[Tokens]:
        """How often each came."""
        return Counter(self.tokens)

    @property
    def commonest(self) -> Tokens:
        """The most frequent one; of several, the smallest, so that order does not matter."""
        counts = self.counts
        most = max(counts.values())
        return min(one for one, count in counts.items() if count == most)

    @property
    def same_tokens(self) -> int:
        """Length of the beginning that all share."""
        low, high = min(self.tokens), max(self.tokens)
        return common_prefix(low, high)

    @property
    def parts_at(self) -> Counter[int]:
        """Where the others leave the commonest: position from 0 -> how many."""
        common = self.commonest
        return Counter(common_prefix(common, one) for one in self.tokens if one != common)

    @property
    def differing(self) -> Estimate:
        """Share that is not the commonest; n counts waves, the interval equally large ones.

        Within a wave all copies see the same batch, so Wilson's interval takes the share as if it
        came from as many trials as there are waves. A large wave weighs more in the share, so waves
        of unequal size are worth fewer (Kish 1965): taken as equal the interval covers 91 %.
        """
        n = len(self.tokens)
        share = 1 - self.counts[self.commonest] / n
        found = wilson(share * self.equal_waves, self.equal_waves)
        return found._replace(n=len(set(self.waves)))

    @property
    def equal_waves(self) -> float:
        """How many waves of one size weigh as much: the squared sum of sizes over their squares."""
        copies = Counter(self.waves).values()
        return sum(copies) ** 2 / sum(size * size for size in copies)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of tokens before two completions differ; the shorter one's length if it never ends."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def read_completions(run: Run) -> Completions:
    """The copies of a run. Raises ValueError for a run of another task."""
    table = run.table(["item_id", "tokens", "wave"]).to_pylist()
    sizes = Counter(row["wave"] for row in table)
    rows = [row for row in table if row["item_id"].startswith(COPY)]
    if not rows:
        raise ValueError(f"{run.folder}: no completions in it (task=completions)")
    return Completions(
        tuple(tuple(row["tokens"]) for row in rows),
        tuple(row["wave"] for row in rows),
        tuple(sizes[row["wave"]] for row in rows),
    )


def row_of(name: str, run: Run, found: Completions, alone: Tokens | None) -> dict[str, Any]:
    """One line of the table; ``alone``: the completion the same setting gives by itself."""
    differing, factors = found.differing, run.factors
    positions = sorted(found.parts_at.elements())
    return {
        "study": name,
        "backend": factors["backend"],
        "dtype": factors["dtype"],
        "kernels": factors["kernels"],
        "batching": factors["batching"],
        "batch_size": factors["batch_size"],
        "largest_wave": max(found.sizes),
        "temperature": factors["temperature"],
        "repeat": run.repeat,
        "completions": len(found.tokens),
        "waves": differing.n,
        "equal_waves": round(found.equal_waves, 1),
        "unique": len(found.counts),
        "commonest": found.counts[found.commonest],
        "as_alone": "" if alone is None else sum(one == alone for one in found.tokens),
        "differing": round(differing.value, 4),
        "differing_low": round(differing.low, 4),
        "differing_high": round(differing.high, 4),
        # Of n waves none showed another completion: so many per wave may still (one-sided, 95 %).
        "unseen_below": round(largest_unseen(differing.n), 4) if len(found.counts) == 1 else "",
        "tokens": len(found.commonest),
        "same_tokens": found.same_tokens,
        "first_split": positions[0] if positions else "",
        "median_split": positions[len(positions) // 2] if positions else "",
        "seconds": round(run.record["wall_s"], 1),
    }


def key(run: Run) -> tuple[Any, ...]:
    """Runs with an equal key give equal answers if company does not matter."""
    f = run.factors
    names = ("backend", "model", "dtype", "kernels", "max_new_tokens", "temperature", "attention")
    return tuple(str(f.get(name)) for name in names)


def tabulate(folders: Sequence[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of all complete runs, and where their completions part (position, count)."""
    loaded = [
        (folder.name, run, read_completions(run))
        for folder in folders
        for run in load_study([folder]).complete
    ]
    alone: dict[tuple[Any, ...], Tokens] = {}
    for _, run, found in loaded:
        if run.factors["batch_size"] == 1:
            alone.setdefault(key(run), found.commonest)
    rows = [row_of(name, run, found, alone.get(key(run))) for name, run, found in loaded]
    # Repeats have no line of their own in the figure: one run a setting, or their counts add up.
    columns = ["study", "backend", "dtype", "kernels", "batching", "position", "completions"]
    firsts: dict[tuple[Any, ...], str] = {}
    for name, run, found in loaded:
        if run.factors["temperature"] == 0:
            line = (name, *(run.factors[factor] for factor in columns[1:5]), max(found.sizes) > 1)
            firsts.setdefault(line, run.id)
    parts = [
        {"study": name, "backend": run.factors["backend"], "dtype": run.factors["dtype"],
         "kernels": run.factors["kernels"], "batching": run.factors["batching"],
         "position": position, "completions": count}
        for name, run, found in loaded
        for position, count in sorted(found.parts_at.items())
        if run.id in firsts.values()
    ]  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(parts, columns=columns)


def failures(folders: Sequence[Path]) -> pd.DataFrame:
    """Runs that have no completions, and why."""
    columns = ["study", "backend", "dtype", "kernels", "batching", "repeat", "reason"]
    rows = [
        [folder.name, *(run.factors[name] for name in columns[1:5]), run.repeat, why(run)]
        for folder in folders
        for run in load_study([folder]).failed
    ]
    return pd.DataFrame(rows, columns=columns)


def why(run: Run) -> str:
    """The reason of a run that failed, in one line."""
    return " ".join(str(run.record.get("reason") or run.status).split())


def main(words: list[str]) -> None:
    """Write the tables, the figure and README.md to OUT, and print the table."""
    out = Path(words[0])
    folders = [Path(word) for word in words[1:]]
    for empty in [folder for folder in folders if not run_folders(folder)]:
        print(f"{empty}: no runs, left out")
        folders.remove(empty)
    table, parts = tabulate(folders)
    lost = failures(folders)
    if table.empty:
        reasons = "; ".join(dict.fromkeys(lost["reason"]))
        sys.exit(f"{out}: no run completed, nothing written. {reasons}".rstrip())
    out.mkdir(parents=True, exist_ok=True)
    save_csv(table, out / "completions.csv")
    save_csv(parts, out / "parts.csv")
    save(panel(table, parts), out / "figures")
    if len(lost):
        save_csv(lost, out / "failed.csv")
    else:
        (out / "failed.csv").unlink(missing_ok=True)
    complete = [run for folder in folders for run in load_study([folder]).complete]
    keep_machine(complete, out / "machine.json")
    (out / "README.md").write_text(page(out))
    shown = ["study", "backend", "kernels", "dtype", "batching", "largest_wave", "completions",
             "waves", "unique", "commonest", "as_alone", "same_tokens"]  # fmt: skip
    print(table[shown].to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
