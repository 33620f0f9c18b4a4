"""Tables of experiments: log-probabilities are compared bit by bit, NaN and signed zero too."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from factory import Row, write_run

from experiments.engines import summarise as engines
from experiments.gpucount import summarise as gpucount
from experiments.precision import table as precision
from nondet.runs import Run, read_run


def by_engine(a: Run, b: Run) -> tuple[int, int]:
    row = engines.compare(a, b)
    return row["diverged"], row["logprobs"]


def by_gpus(a: Run, b: Run) -> tuple[int, int]:
    row = gpucount.compare(a, b)
    return row["tokens"], row["logprobs"]


def by_format(a: Run, b: Run) -> tuple[int, int]:
    row = precision.counts([a, b], None)
    return row["diverged"], row["bits"]


TABLES = pytest.mark.parametrize("table", [by_engine, by_gpus, by_format])


def two(folder: Path, a: list[float], b: list[float]) -> tuple[Run, Run]:
    """Runs of two items with the same tokens; the first item has these log-probabilities."""
    found = []
    for place, values in enumerate((a, b)):
        rows = [Row([5, 6, 7], values), Row([5, 6, 7], [-1.0, -2.0, -3.0])]
        found.append(read_run(folder / write_run(folder, {"batch_size": place + 1}, rows)))
    return found[0], found[1]


@TABLES
@pytest.mark.parametrize(
    ("a", "b", "differ"),
    [
        ([-1.0, math.nan, -2.0], [-1.0, math.nan, -2.0], 0),
        ([-1.0, -math.inf, -2.0], [-1.0, -math.inf, -2.0], 0),
        ([-1.0, math.nan, -2.0], [-1.0, -1.0, -2.0], 1),
        ([-1.0, 0.0, -2.0], [-1.0, -0.0, -2.0], 1),
        ([-1.0, -1.0, -2.0], [-1.0, float(np.nextafter(np.float32(-1), -2)), -2.0], 1),
        ([], [], 0),
    ],
)
def test_what_counts_as_another_log_probability(
    table: Callable[[Run, Run], tuple[int, int]],
    a: list[float],
    b: list[float],
    differ: int,
    tmp_path: Path,
) -> None:
    assert table(*two(tmp_path, a, b)) == (0, differ)


def gap_by_gpus(a: Run, b: Run) -> float:
    return float(gpucount.compare(a, b)["gap"])


def gap_by_format(a: Run, b: Run) -> float:
    return float(precision.counts([a, b], None)["largest_gap"])


@pytest.mark.parametrize("gap", [gap_by_gpus, gap_by_format])
@pytest.mark.parametrize("unknown", [math.nan, -math.inf])
def test_a_value_that_nobody_knows_hides_no_gap(
    gap: Callable[[Run, Run], float], unknown: float, tmp_path: Path
) -> None:
    runs = two(tmp_path, [unknown, -1.0, -2.0], [unknown, -1.5, -2.0])
    assert gap(*runs) == gap(*runs[::-1]) == 0.5


def test_gpu_counts_are_not_compared_across_another_option(tmp_path: Path) -> None:
    own = {"backend": "hf", "kernels": "default", "batch_size": 8}
    rows = [Row([5, 6], [-1.0, -2.0])]
    runs = [
        read_run(tmp_path / write_run(tmp_path, {**own, "gpus": gpus, **more}, rows))
        for gpus, more in ((1, {}), (2, {"cudnn_attention": False}))
    ]
    with pytest.raises(ValueError, match="cudnn_attention=False"):
        gpucount.rows_of(runs)


def test_engines_are_compared_in_every_mode(tmp_path: Path) -> None:
    rows = [Row([5, 6], [-1.0, -2.0])]
    for kernels, size, repeat in (
        ("default", 1, 0), ("default", 8, 0), ("tp_invariant", 1, 0), ("tp_invariant", 8, 0),
    ):  # fmt: skip
        factors = {"backend": "hf", "kernels": kernels, "batch_size": size}
        write_run(tmp_path / "runs", factors, rows, repeat=repeat)
    engines.main(tmp_path)
    table = pd.read_csv(tmp_path / "table.csv")
    assert sorted(zip(table["kernels"], table["batch_size"], table["repeat"], strict=True)) == [
        ("default", 8, 0),
        ("tp_invariant", 8, 0),
    ]


@pytest.mark.parametrize("table", [engines.main, gpucount.main])
def test_one_run_is_nothing_to_compare(tmp_path: Path, table: Callable[[Path], None]) -> None:
    factors = {"backend": "hf", "kernels": "default", "batch_size": 1, "gpus": 1}
    write_run(tmp_path / "runs", factors, [Row([5, 6], [-1.0, -2.0])])
    with pytest.raises(SystemExit, match="no two complete runs of one engine"):
        table(tmp_path)
    assert not (tmp_path / "table.csv").exists()
