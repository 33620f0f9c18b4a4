"""An item that ends in an error everywhere is no item whose answers agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from factory import Row, make_rows, write_run

from nondet.analysis import analyse
from nondet.metrics.divergence import NEVER, against, div_index, unique_outputs
from nondet.metrics.groups import groups_of
from nondet.metrics.load import load
from nondet.metrics.setting_tables import attribution_table, div_index_table
from nondet.metrics.sides import compare_stored
from nondet.study import Study, load_study

ITEMS = 6
# The engine gave up before the first token, or after two of them.
SILENT = Row([], [], "error", None, None, None)
LATE = Row([11, 12], [-0.1, -0.2], "error", None, None, None)


def study(folder: Path) -> Study:
    """Three settings and a repeat; the first two items fail in all runs."""
    rows = [SILENT, LATE, *make_rows(np.random.default_rng(0), ITEMS - 2, 8, None)]
    for batch_size, repeat in ((1, 0), (1, 1), (2, 0), (4, 0)):
        write_run(folder / "runs", {"batch_size": batch_size}, rows, repeat=repeat)
    return load_study([folder])


def test_two_errors_are_not_identical(tmp_path: Path) -> None:
    forest = load(study(tmp_path).complete).forest
    found = against(forest, 0)
    assert found.identical[:2].sum() == 0
    assert found.identical[2:].all()
    assert found.cut[:2].all()
    assert (div_index(forest, [0, 1, 2, 3]) == NEVER).all()
    assert unique_outputs(forest, [0, 1, 2, 3]).tolist() == [4, 4, 1, 1, 1, 1]


def test_tables_leave_errors_out_of_their_items(tmp_path: Path) -> None:
    found = study(tmp_path)
    loaded, rng = load(found.complete), np.random.default_rng(0)
    table = div_index_table(loaded, groups_of(found), rng)
    assert set(table["n"]) == {ITEMS - 2}
    assert set(table["unique_outputs"]) == {1.0}
    factors = attribution_table(found, loaded, rng)
    assert set(factors["n"]) == {ITEMS - 2}
    assert set(factors["value"]) == {1.0}


def test_repeats_that_fail_alike_are_neither_identical_nor_different(tmp_path: Path) -> None:
    summary = analyse(study(tmp_path)).summary
    repeated = summary[summary["batch_size"] == 1]
    assert len(repeated) == 2
    assert repeated["repeat_identical"].isna().all()


def test_the_verdict_counts_what_can_be_told(tmp_path: Path) -> None:
    found = analyse(study(tmp_path))
    assert any(f"0 of {ITEMS - 2} items" in reason for reason in found.reasons)
    assert any("cannot tell" in reason for reason in found.reasons)


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    a, b = study(tmp_path).complete[:2]
    found = compare_stored(a, b)
    assert (found.items, found.identical, found.diverged, found.cut) == (ITEMS, ITEMS - 2, 0, 2)
