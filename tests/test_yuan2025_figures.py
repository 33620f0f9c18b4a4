"""Rows of the paper's figures stand in an order of their own, whatever the order of the runs."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest

from experiments.yuan2025 import figures
from experiments.yuan2025.arrange import arranged, rank
from experiments.yuan2025.matrix import Scale
from experiments.yuan2025.numbers import workloads
from experiments.yuan2025.results import Result, load_results
from experiments.yuan2025.tables import DTYPES, Tables, specs
from nondet.report.panel import Panel
from nondet.report.style import house
from tests import yuan_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scale, list[Result]]:
    folder = tmp_path_factory.mktemp("mini")
    # Something parts in every format, so that every interval is drawn at random.
    scale = yuan_study.make(folder, dict.fromkeys(DTYPES, 0.5))
    return scale, load_results(scale, folder)


def panels(scale: Scale, results: list[Result]) -> dict[str, Panel]:
    tables = Tables(scale, results, workloads(results))
    with house():
        return {name: figures.make(name, tables) for name in specs("figures")}


def test_shuffled_runs_make_the_same_figures(
    study: tuple[Scale, list[Result]], tmp_path: Path
) -> None:
    scale, results = study
    wanted = panels(scale, results)
    for seed in range(2):
        shuffled = random.Random(seed).sample(results, len(results))
        for name, panel in panels(scale, shuffled).items():
            pd.testing.assert_frame_equal(panel.table, wanted[name].table, check_exact=True)
            assert (panel.alt, panel.note) == (wanted[name].alt, wanted[name].note), name
            if panel.figure is not None:
                assert panel.svg == wanted[name].svg, name


def test_another_order_of_runs_is_no_other_number(study: tuple[Scale, list[Result]]) -> None:
    scale, results = study
    tables = Tables(scale, results, workloads(results))
    names = ["task", "dtype"]
    for name in ("tables_3_6", "table_9"):
        before, after = (made.make(name).set_index(names) for made in (tables, arranged(tables)))
        columns = ["ours", "low", "high", "settings", "items"]
        known = before.loc[before["ours"].notna(), columns]
        assert len(known) == len(scale.tasks) * len(DTYPES)
        pd.testing.assert_frame_equal(after.loc[known.index, columns], known)


def test_rows_go_by_task_then_format(study: tuple[Scale, list[Result]]) -> None:
    scale, results = study
    found = panels(scale, results)
    for name in ("figure_4", "figure_8"):
        table = found[name].table
        assert list(dict.fromkeys(table["task"])) == list(scale.tasks)
        for _, part in table.groupby("task"):
            assert list(part["dtype"]) == list(DTYPES)
    assert list(dict.fromkeys(found["figure_5"].table["group"])) == list(DTYPES)
    sixth = found["figure_6"].table
    sizes = sixth[sixth["batch_size"].notna()]
    assert list(zip(sizes["task"], sizes["dtype"], sizes["batch_size"], strict=True)) == [
        (task, dtype, size) for task in scale.tasks for dtype in DTYPES[:2] for size in (4, 8, 16)
    ]


def test_a_number_is_not_ordered_as_a_word() -> None:
    rows = [
        {"dtype": dtype, "kernels": kernels, "gpus": gpus, "batch_size": size}
        for dtype in DTYPES
        for kernels in ("default", "invariant")
        for gpus in (1, 2, None)
        for size in (8, "16", 64, "auto")
    ]
    shuffled = random.Random(0).sample(rows, len(rows))
    assert sorted(shuffled, key=lambda row: rank(row.get)) == rows
