"""What the metrics read of a run: everything but the tokens, and how rows belong to items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nondet.metrics.accuracy import UNKNOWN
from nondet.runs import Run
from nondet.study import StudyError

# The class of a response in which no answer was found. Two of them agree with each other.
NO_ANSWER = ""


@dataclass(frozen=True)
class Outcomes:
    """One run without its tokens; P rows, a row being one sample of one item.

    keys: "item" or "item#sample" of each row. item_P: int64 (P,), which item a row belongs to,
    numbered in order of appearance. lengths_P: tokens, end token included. cut_P: True where
    the response did not end by itself (token limit or error). error_P: True where it ended in an
    error. correct_P: int8, 1, 0 or -1 for not known. answers_P: what the marker read, NO_ANSWER
    where it read none.
    """

    keys: tuple[str, ...]
    item_P: NDArray[np.int64]
    lengths_P: NDArray[np.int64]
    cut_P: NDArray[np.bool_]
    error_P: NDArray[np.bool_]
    correct_P: NDArray[np.int8]
    answers_P: NDArray[np.object_]

    @property
    def answered_P(self) -> NDArray[np.bool_]:
        """Rows whose answer, or that there is none, is known; not those that nobody marked."""
        return np.asarray((self.correct_P != UNKNOWN) | (self.answers_P != NO_ANSWER), dtype=bool)

    @property
    def errors(self) -> int:
        """Rows that ended in an error."""
        return int(self.error_P.sum())


COLUMNS = ["item_id", "sample", "finish_reason", "correct", "answer"]


def read_outcomes(run: Run, lengths_P: NDArray[np.int64]) -> Outcomes:
    """Outcomes of a run whose token counts are known. Raises FileNotFoundError."""
    table = run.table(COLUMNS)
    item_ids = table["item_id"].to_pylist()
    samples = table["sample"].to_pylist()
    several = len(set(item_ids)) < len(item_ids)
    keys = [
        f"{item}#{sample}" if several else str(item)
        for item, sample in zip(item_ids, samples, strict=True)
    ]
    number = {item: place for place, item in enumerate(dict.fromkeys(item_ids))}
    finish = np.asarray(table["finish_reason"].to_pylist(), dtype=object)
    answers = table["answer"].to_pylist()
    return Outcomes(
        keys=tuple(keys),
        item_P=np.array([number[item] for item in item_ids], dtype=np.int64),
        lengths_P=lengths_P,
        cut_P=np.asarray(finish != "stop", dtype=bool),
        error_P=np.asarray(finish == "error", dtype=bool),
        correct_P=_filled(table["correct"]),
        answers_P=np.array([NO_ANSWER if a is None else str(a) for a in answers], dtype=object),
    )


def _filled(column: pa.ChunkedArray) -> NDArray[np.int8]:
    return np.asarray(pc.fill_null(column, UNKNOWN).to_numpy(), dtype=np.int8)


def check_same_rows(runs: Sequence[Run], outcomes: Sequence[Outcomes]) -> None:
    """Raise StudyError unless all runs answer the same items in the same order."""
    for run, found in zip(runs[1:], outcomes[1:], strict=True):
        if found.keys != outcomes[0].keys:
            raise StudyError(
                f"{run.folder}: not comparable with {runs[0].folder}, items: "
                f"{len(found.keys)} rows against {len(outcomes[0].keys)}, or in another order"
            )
