"""Runs of a study read column by column, never all columns or all runs at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nondet.metrics.divergence import Comparison
from nondet.metrics.fork import BATCH, BUFFER, gaps_at, read_candidates
from nondet.metrics.prefix import PrefixForest, build_forest
from nondet.metrics.ragged import Ragged, Spill, from_arrow
from nondet.metrics.responses import Outcomes, check_same_rows, read_outcomes
from nondet.metrics.scan import Pair, Scan, scan_logprobs
from nondet.runs import Run


@dataclass(frozen=True)
class Loaded:
    """Complete runs of one study without their tokens: C runs, P rows each."""

    runs: tuple[Run, ...]
    outcomes: tuple[Outcomes, ...]
    forest: PrefixForest

    @property
    def item_P(self) -> NDArray[np.int64]:
        """Item of every row, int64 (P,)."""
        return self.outcomes[0].item_P

    @property
    def items(self) -> int:
        """Number of items (less than rows when items have several samples)."""
        return int(self.item_P.max()) + 1 if len(self.item_P) else 0

    @property
    def correct_CP(self) -> NDArray[np.int8]:
        """1 right, 0 wrong, -1 not known, int8 (C, P)."""
        return np.stack([outcome.correct_P for outcome in self.outcomes])

    @property
    def error_CP(self) -> NDArray[np.bool_]:
        """Rows that ended in an error, bool (C, P)."""
        return np.stack([outcome.error_P for outcome in self.outcomes])

    @property
    def answered_CP(self) -> NDArray[np.bool_]:
        """Rows whose answer, or that there is none, is known, bool (C, P)."""
        return np.stack([outcome.answered_P for outcome in self.outcomes])

    @property
    def answers_CP(self) -> NDArray[np.object_]:
        """What the marker read, (C, P) of strings."""
        return np.stack([outcome.answers_P for outcome in self.outcomes])


def read_column(run: Run, name: str) -> Ragged:
    """One list column of a run. Decoded a few rows at a time: reading a column at once takes more
    than ten times its size for a moment. Raises FileNotFoundError."""
    file = pq.ParquetFile(run.folder / "tokens.parquet", buffer_size=BUFFER)
    parts = [from_arrow(batch.column(0)) for batch in file.iter_batches(BATCH, columns=[name])]
    if not parts:
        return from_arrow(run.table([name])[name])
    values = [part.values[part.offsets[0] : part.offsets[-1]] for part in parts]
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(np.concatenate(values), offsets)


def load(runs: Sequence[Run]) -> Loaded:
    """Prefix trees and outcomes of complete runs. Raises StudyError when items differ."""
    outcomes: list[Outcomes] = []
    with Spill() as spill:
        for run in runs:
            tokens = read_column(run, "tokens")
            outcomes.append(read_outcomes(run, tokens.lengths))
            spill.add(tokens)
        check_same_rows(runs, outcomes)
        spill.flush()
        lengths_PC = np.stack([outcome.lengths_P for outcome in outcomes], axis=1)
        cut_PC = np.stack([outcome.cut_P for outcome in outcomes], axis=1)
        error_PC = np.stack([outcome.error_P for outcome in outcomes], axis=1)
        forest = build_forest(spill.row, lengths_PC, cut_PC, error_PC)
    return Loaded(tuple(runs), tuple(outcomes), forest)


def read_logprobs(run: Run, lengths_P: NDArray[np.int64]) -> Ragged:
    """Log-probabilities of the emitted tokens; rows that have none are NaN throughout."""
    found = read_column(run, "logprobs")
    if np.array_equal(found.lengths, lengths_P):
        return found
    offsets = np.concatenate([[0], np.cumsum(lengths_P)]).astype(np.int64)
    filled = Ragged(np.full(int(offsets[-1]), np.nan, dtype=np.float32), offsets)
    for row in np.flatnonzero(found.lengths == lengths_P):
        filled.row(int(row))[:] = found.row(int(row))
    return filled


def scan(
    loaded: Loaded,
    pairs: Sequence[Pair],
    groups: dict[str, tuple[int, ...]],
    everyone: Sequence[int],
) -> Scan:
    """The pass over log-probabilities; the reference is the first run."""
    with Spill() as spill:
        for run, outcome in zip(loaded.runs, loaded.outcomes, strict=True):
            spill.add(read_logprobs(run, outcome.lengths_P))
        spill.flush()
        return scan_logprobs(spill.row, loaded.forest, pairs, groups, everyone)


@dataclass(frozen=True)
class Gaps:
    """Top-1 to top-2 gaps at the forks with the reference, (P, C), on both sides."""

    reference_PC: NDArray[np.float64]
    log_reference_PC: NDArray[np.float64]
    run_PC: NDArray[np.float64]
    log_run_PC: NDArray[np.float64]


def gaps(loaded: Loaded, comparison: Comparison, threads: int = 2) -> Gaps:
    """Gaps at every fork with the first run, from both runs' stored candidates."""
    position_PC = comparison.position
    items, runs = position_PC.shape
    wanted: dict[int, set[int]] = {}
    for row, column in zip(*np.nonzero(comparison.diverged), strict=True):
        wanted.setdefault(int(row), set()).add(int(position_PC[row, column]))
    reference = read_candidates(loaded.runs[0], loaded.outcomes[0].lengths_P, wanted)
    arrays = [np.full((items, runs), np.nan) for _ in range(4)]

    def fill(run: int) -> None:
        forks = np.flatnonzero(comparison.diverged[:, run])
        own_wanted = {int(row): {int(position_PC[row, run])} for row in forks}
        own = read_candidates(loaded.runs[run], loaded.outcomes[run].lengths_P, own_wanted)
        arrays[0][:, run], arrays[1][:, run] = gaps_at(reference, position_PC[:, run])
        arrays[2][:, run], arrays[3][:, run] = gaps_at(own, position_PC[:, run])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(1, runs)))
    return Gaps(*arrays)
