"""The order of rows in figures: of their factors, not of the cells as they were run.

A scale runs what tells most first, so the order of its cells is no order to read in; and numbers
drawn at random, or added up, depend on the order of the runs behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.yuan2025.numbers import Workload, value_of
from experiments.yuan2025.results import Result
from experiments.yuan2025.tables import DTYPES, Tables
from nondet.metrics.load import Loaded
from nondet.metrics.prefix import PrefixForest

KERNELS = ("default", "invariant", "tp_invariant")
Key = tuple[Any, ...]


def rank(factor: Callable[[str], Any]) -> Key:
    """A sort key from the factors: the format, then kernels, GPUs, batch size, GPU type.

    factor: the value of a factor by its name, None where it is none of the row's.
    """
    words = [_among(DTYPES, factor("dtype")), _among(KERNELS, factor("kernels"))]
    counts = [_number(factor("gpus")), _number(factor("batch_size"))]
    return (*words, *counts, str(factor("hardware")))


def _among(known: tuple[str, ...], value: Any) -> tuple[int, str]:
    """Known words in their order, others by name after them."""
    word = str(value)
    return (known.index(word) if word in known else len(known), word)


def _number(value: Any) -> tuple[float, str]:
    """Numbers by size, what is none of them by name after them."""
    word = str(value)
    return (float(word) if word.isdecimal() else float("inf"), word)


def arranged(tables: Tables) -> Tables:
    """The same results and workloads, by model, task, and ``rank`` of their factors."""
    models, tasks = (tuple(names) for names in (tables.scale.models, tables.scale.tasks))

    def head(model: str, task: str, samples: int) -> Key:
        return (_among(models, model), _among(tasks, task), samples)

    def place(result: Result) -> Key:
        cell = result.cell
        factors = rank(lambda name: value_of(result, name))
        return (*head(cell.model, cell.task, cell.samples), *factors, cell.name)

    workloads = sorted(tables.workloads, key=lambda w: head(w.model, w.task, w.samples))
    return Tables(
        tables.scale,
        sorted(tables.results, key=place),
        [_reordered(workload, place) for workload in workloads],
        tables.elsewhere,
    )


def _reordered(workload: Workload, place: Callable[[Result], Key]) -> Workload:
    """The same workload with its runs in another order, without reading them again."""
    order = sorted(range(len(workload.results)), key=lambda at: place(workload.results[at]))
    loaded, forest = workload.loaded, workload.loaded.forest
    # The new number of a run by its old one.
    number = np.argsort(order).astype(forest.order_PC.dtype)
    moved = PrefixForest(
        number[forest.order_PC],
        forest.shared_PC,
        forest.lengths_PC[:, order],
        forest.cut_PC[:, order],
        forest.error_PC[:, order],
    )
    runs = tuple(loaded.runs[at] for at in order)
    outcomes = tuple(loaded.outcomes[at] for at in order)
    results = tuple(workload.results[at] for at in order)
    return replace(workload, results=results, loaded=Loaded(runs, outcomes, moved))
