"""One pass over the stored log-probabilities of all runs, item by item, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nondet.metrics.divergence import common_length
from nondet.metrics.prefix import PrefixForest
from nondet.metrics.probability import (
    Difference,
    difference_rows,
    spread,
    sum_of_differences,
    summary_of,
)

Pair = tuple[int, int]


@dataclass
class Top1:
    """Spread of the top-1 probability of one group of settings; arrays over items, (P,).

    mean_P: mean over the item's own common prefix; total_P and count_P for the pooled variant;
    global_P: mean over the prefix that all settings of the study share.
    """

    mean_P: NDArray[np.float64]
    total_P: NDArray[np.float64]
    count_P: NDArray[np.int64]
    global_P: NDArray[np.float64]


@dataclass
class Scan:
    """What the pass found.

    pairs: differences over the common prefixes of each pair of runs. top1: by group. before_PC and
    largest_PC: |log-probability difference| against the reference just before the end of the
    common prefix, and the largest within it; NaN where nothing is common or known.
    """

    pairs: dict[Pair, Difference]
    top1: dict[str, Top1]
    before_PC: NDArray[np.float64]
    largest_PC: NDArray[np.float64]


def _empty_top1(items: int) -> Top1:
    nan = np.full(items, np.nan)
    return Top1(nan.copy(), np.zeros(items), np.zeros(items, dtype=np.int64), nan.copy())


def scan_logprobs(
    row: Callable[[int, int], NDArray[Any]],
    forest: PrefixForest,
    pairs: Sequence[Pair],
    groups: Mapping[str, Sequence[int]],
    everyone: Sequence[int],
    reference: int = 0,
    ddof: int = 1,
) -> Scan:
    """Differences of log-probabilities over common prefixes.

    Args:
        row: ``row(run, item)`` gives the log-probabilities of one response, (T,).
        forest: prefix trees of the same responses.
        pairs: pairs of runs to compare with each other.
        groups: named groups of runs (one run a setting) for Avg_Std@top1_prob.
        everyone: the runs whose common prefix is the global one.
        reference: the run for ``before_PC`` and ``largest_PC``.
        ddof: of the spread over settings.
    """
    items, runs = forest.order_PC.shape
    with_reference = forest.prefix_with(reference)
    prefix = {a: forest.prefix_with(a).astype(np.int32) for a in {a for a, _ in pairs}}
    ends = {name: common_length(forest, members) for name, members in groups.items()}
    global_end = common_length(forest, everyone)
    parts = np.zeros((len(pairs), 4))
    top1 = {name: _empty_top1(items) for name in groups}
    before, largest = np.full((2, items, runs), np.nan)
    with np.errstate(invalid="ignore"):
        for item in range(items):
            rows = [np.asarray(row(run, item), dtype=np.float64) for run in range(runs)]
            for run in range(runs):
                end = int(with_reference[item, run])
                if run != reference and end:
                    gap = np.abs(difference_rows(rows[reference][:end], rows[run][:end]))
                    before[item, run] = gap[-1]
                    largest[item, run] = _largest(gap)
            for part, (a, b) in zip(parts, pairs, strict=True):
                end = int(prefix[a][item, b])
                found = sum_of_differences(np.abs(difference_rows(rows[a][:end], rows[b][:end])))
                part[0] = max(part[0], found[0])
                part[1:] += found[1:]
            probabilities = {run: np.exp(rows[run][: _longest(ends, item)]) for run in range(runs)}
            for name, members in groups.items():
                end = int(ends[name][item])
                values = spread(np.stack([probabilities[run][:end] for run in members]), ddof)
                _add(top1[name], item, values, int(global_end[item]))
    found_pairs = {
        pair: summary_of(part[0], part[1], int(part[2]), int(part[3]))
        for pair, part in zip(pairs, parts, strict=True)
    }
    return Scan(found_pairs, top1, before, largest)


def _largest(gap: NDArray[np.float64]) -> float:
    top = float(gap.max())
    if np.isnan(top):
        known = gap[~np.isnan(gap)]
        top = float(known.max()) if known.size else np.nan
    return top


def _longest(ends: Mapping[str, NDArray[np.int64]], item: int) -> int:
    return max((int(end[item]) for end in ends.values()), default=0)


def _add(top1: Top1, item: int, values: NDArray[np.float64], global_end: int) -> None:
    known = values[~np.isnan(values)]
    top1.total_P[item], top1.count_P[item] = known.sum(), known.size
    if known.size:
        top1.mean_P[item] = known.mean()
    within = values[:global_end]
    within = within[~np.isnan(within)]
    if within.size:
        top1.global_P[item] = within.mean()
