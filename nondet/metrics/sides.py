"""Two runs side by side: every way in which their responses to the same items differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nondet.metrics.accuracy import accuracy, flips, item_flips, mcnemar
from nondet.metrics.candidates import probability_divergence
from nondet.metrics.divergence import Comparison, compare_lengths, median_position
from nondet.metrics.fork import BATCH, BUFFER
from nondet.metrics.intervals import share_of_known
from nondet.metrics.load import read_column, read_logprobs
from nondet.metrics.prefix import common_prefix
from nondet.metrics.probability import top_k_kl
from nondet.metrics.ragged import Ragged, from_arrow
from nondet.metrics.responses import Outcomes, read_outcomes
from nondet.metrics.rl import mismatch
from nondet.runs import Run

# Diverging items named in a comparison.
EXAMPLES = 20


@dataclass(frozen=True)
class Side:
    """One run in memory: tokens, log-probabilities of the emitted tokens, outcomes."""

    tokens: Ragged
    logprobs: Ragged
    outcomes: Outcomes


@dataclass(frozen=True)
class Difference:
    """What differs between two runs; counts are of rows unless said otherwise.

    diverged, identical, cut: see ``divergence``; share, low, high: share diverged with Wilson's
    interval, of the rows that are identical or diverged. errors: responses that ended in one; the
    counts of lengths, finish reasons, answers and verdicts that differ leave them out.
    median_first: median position of the first divergence.
    logprobs: sampling-against-training names of ``rl.Mismatch`` over the common prefixes, a as the
    sampling side.
    logprobs_differ: positions whose log-probabilities are not equal to the last bit (a NaN on one
    side only counts). kl_mean, kl_max: lower bounds of KL(a || b) from stored candidates;
    top_probability_divergence: mean over positions of the largest difference in probability.
    common_tokens: tokens compared and equal. logprob_rows: rows with such a log-probability.
    tokens_only, text_only: rows whose tokens differ under equal text, and the reverse (an artefact
    of the detokeniser, not of the model). examples: the first diverging items and positions.
    """

    items: int
    identical: int
    diverged: int
    cut: int
    share: float
    low: float
    high: float
    median_first: float
    lengths_differ: int
    finish_differ: int
    errors: int
    answers_differ: int
    verdicts_differ: int
    accuracy_a: float
    accuracy_b: float
    only_a: int
    only_b: int
    mcnemar_p: float
    logprobs_compared: int
    logprobs_differ: int
    logprobs: dict[str, float]
    examples: list[dict[str, Any]]
    kl_mean: float = float("nan")
    kl_max: float = float("nan")
    top_probability_divergence: float = float("nan")
    common_tokens: int = 0
    logprob_rows: int = 0
    tokens_only: int = 0
    text_only: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, NaN kept."""
        return asdict(self)


def compare_sides(a: Side, b: Side) -> Difference:
    """Compare two runs of the same items, in memory. Raises ValueError when items differ."""
    if a.outcomes.keys != b.outcomes.keys:
        raise ValueError(f"items: {len(a.outcomes.keys)} against {len(b.outcomes.keys)} rows")
    rows = len(a.outcomes.keys)
    prefix = np.array(
        [common_prefix(a.tokens.row(row), b.tokens.row(row)) for row in range(rows)], dtype=np.int64
    )
    lost = a.outcomes.error_P | b.outcomes.error_P
    found = compare_lengths(
        prefix, a.tokens.lengths, b.tokens.lengths, a.outcomes.cut_P, b.outcomes.cut_P, lost
    )
    decided = found.diverged | found.identical
    share = share_of_known(found.diverged, decided, a.outcomes.item_P)
    only_a, only_b, _ = flips(a.outcomes.correct_P, b.outcomes.correct_P)
    # What an error left behind is no answer of its own.
    ended = ~lost
    before_a, before_b = _heads(a.logprobs, prefix), _heads(b.logprobs, prefix)
    unequal, compared = _unequal(before_a, before_b)
    return Difference(
        items=rows,
        identical=int(found.identical.sum()),
        diverged=int(found.diverged.sum()),
        cut=int((found.cut & ~found.identical).sum()),
        share=share.value,
        low=share.low,
        high=share.high,
        median_first=float(median_position(found.position[:, None])[0]),
        lengths_differ=int((ended & (a.tokens.lengths != b.tokens.lengths)).sum()),
        finish_differ=int((ended & (a.outcomes.cut_P != b.outcomes.cut_P)).sum()),
        errors=a.outcomes.errors + b.outcomes.errors,
        answers_differ=int((ended & (a.outcomes.answers_P != b.outcomes.answers_P)).sum()),
        verdicts_differ=int((ended & (a.outcomes.correct_P != b.outcomes.correct_P)).sum()),
        accuracy_a=accuracy(a.outcomes.correct_P).value,
        accuracy_b=accuracy(b.outcomes.correct_P).value,
        only_a=only_a,
        only_b=only_b,
        mcnemar_p=mcnemar(
            *item_flips(a.outcomes.correct_P, b.outcomes.correct_P, a.outcomes.item_P)
        ),
        logprobs_compared=compared,
        logprobs_differ=unequal,
        logprobs=mismatch(before_a, before_b)._asdict(),
        examples=_examples(a.outcomes.keys, found),
        common_tokens=int(prefix.sum()),
        logprob_rows=sum(
            _unequal([one], [two])[0] > 0 for one, two in zip(before_a, before_b, strict=True)
        ),
    )


def _heads(values: Ragged, prefix_P: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    return [
        np.asarray(values.row(row)[:end], dtype=np.float64)
        for row, end in enumerate(prefix_P.tolist())
    ]


def _unequal(a: list[NDArray[np.float64]], b: list[NDArray[np.float64]]) -> tuple[int, int]:
    """Positions that are not equal to the last bit (two NaN are equal), and positions known."""
    one = np.concatenate(a) if a else np.empty(0)
    two = np.concatenate(b) if b else np.empty(0)
    none_a, none_b = np.isnan(one), np.isnan(two)
    unequal = int(((one != two) & ~(none_a & none_b)).sum())
    return unequal, int((~none_a & ~none_b).sum())


def _examples(keys: tuple[str, ...], found: Comparison) -> list[dict[str, Any]]:
    rows = np.flatnonzero(found.diverged)[:EXAMPLES].tolist()
    return [{"item": keys[row], "position": int(found.position[row])} for row in rows]


def read_side(run: Run) -> Side:
    """One run from disk, without its candidates."""
    tokens = read_column(run, "tokens")
    outcomes = read_outcomes(run, tokens.lengths)
    return Side(tokens, read_logprobs(run, tokens.lengths), outcomes)


def compare_stored(a: Run, b: Run) -> Difference:
    """Compare two complete runs on disk, with candidates and text. Raises ValueError."""
    side_a, side_b = read_side(a), read_side(b)
    found = compare_sides(side_a, side_b)
    same_text = pc.equal(a.table(["text"])["text"], b.table(["text"])["text"])
    equal_text = np.asarray(pc.fill_null(same_text, True).to_numpy(), dtype=bool)
    prefix = np.array(
        [
            common_prefix(side_a.tokens.row(row), side_b.tokens.row(row))
            for row in range(found.items)
        ],
        dtype=np.int64,
    )
    equal_tokens = (prefix == side_a.tokens.lengths) & (prefix == side_b.tokens.lengths)
    kl, apart = _candidates(a, b, prefix, (side_a.tokens.lengths, side_b.tokens.lengths))
    extra = {
        "kl_mean": float(kl.mean()) if kl.size else float("nan"),
        "kl_max": float(kl.max()) if kl.size else float("nan"),
        "top_probability_divergence": float(apart.mean()) if apart.size else float("nan"),
        "tokens_only": int((~equal_tokens & equal_text).sum()),
        "text_only": int((equal_tokens & ~equal_text).sum()),
    }
    return Difference(**{**vars(found), **extra})


def _candidates(
    a: Run,
    b: Run,
    prefix_P: NDArray[np.int64],
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """KL and largest probability difference at every position with the same context.

    Both files are streamed in step.
    """
    columns = ["top_ids", "top_logprobs"]
    streams = [
        pq.ParquetFile(run.folder / "tokens.parquet", buffer_size=BUFFER).iter_batches(
            BATCH, columns=columns
        )
        for run in (a, b)
    ]
    parts: list[NDArray[np.float64]] = [np.empty(0)]
    apart: list[NDArray[np.float64]] = [np.empty(0)]
    start = 0
    for batches in zip(*streams, strict=True):
        ids = [from_arrow(batch.column(0)) for batch in batches]
        logprobs = [from_arrow(batch.column(1)) for batch in batches]
        for row in range(len(batches[0])):
            at = start + row
            # The position of the fork counts: what was said before it is still the same.
            end = min(int(prefix_P[at]) + 1, int(lengths[0][at]), int(lengths[1][at]))
            shaped = [
                _shaped(ids[side].row(row), logprobs[side].row(row), int(lengths[side][at]))
                for side in (0, 1)
            ]
            if end and shaped[0] is not None and shaped[1] is not None:
                (ids_a, log_a), (ids_b, log_b) = shaped[0], shaped[1]
                same = (ids_a[:end], log_a[:end], ids_b[:end], log_b[:end])
                parts.append(top_k_kl(*same))
                apart.append(probability_divergence(*same))
        start += len(batches[0])
    kl, largest = np.concatenate(parts), np.concatenate(apart)
    return kl[~np.isnan(kl)], largest[~np.isnan(largest)]


def _shaped(
    ids: NDArray[Any], logprobs: NDArray[Any], length: int
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Flat candidates as (T, K); None where the engine gave none."""
    if not length or not ids.size or ids.size % length or ids.size != logprobs.size:
        return None
    return ids.reshape(length, -1), logprobs.reshape(length, -1)
