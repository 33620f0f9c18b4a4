"""First divergence, Div_Index and the prefix tree, against plain loops and by hand."""

from __future__ import annotations

import naive_metrics as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nondet.metrics.divergence import (
    against,
    common_length,
    div_index,
    median_position,
    unique_outputs,
)
from nondet.metrics.prefix import NEVER, PrefixForest, build_forest, common_prefix

ROW = st.lists(st.integers(0, 2), max_size=6)


@st.composite
def responses(draw):
    """Items of C responses each, over a small alphabet so that long prefixes are shared."""
    runs = draw(st.integers(1, 5))
    items = draw(st.integers(1, 4))
    rows = [[draw(ROW) for _ in range(runs)] for _ in range(items)]
    cuts = [[draw(st.booleans()) for _ in range(runs)] for _ in range(items)]
    return rows, cuts


def forest_of(rows, cuts) -> PrefixForest:
    arrays = [[np.array(row, dtype=np.int32) for row in item] for item in rows]
    lengths = np.array([[len(row) for row in item] for item in rows], dtype=np.int64)
    return build_forest(lambda run, item: arrays[item][run], lengths, np.array(cuts, dtype=bool))


def none(position: int) -> int | None:
    return None if position == NEVER else int(position)


@settings(max_examples=300, deadline=None)
@given(responses())
def test_pairs_agree_with_plain_loops(data) -> None:
    rows, cuts = data
    forest = forest_of(rows, cuts)
    for a in range(len(rows[0])):
        found = against(forest, a)
        for item, (row, cut) in enumerate(zip(rows, cuts, strict=True)):
            for b in range(len(row)):
                assert found.prefix[item, b] == naive.shared(row[a], row[b])
                expected = naive.pair(row[a], row[b], cut[a], cut[b])
                got = (
                    none(found.position[item, b]),
                    bool(found.identical[item, b]),
                    bool(found.cut[item, b]),
                )
                assert got == expected


@settings(max_examples=300, deadline=None)
@given(responses(), st.data())
def test_groups_agree_with_plain_loops(data, draw) -> None:
    rows, cuts = data
    forest = forest_of(rows, cuts)
    runs = draw.draw(st.lists(st.integers(0, len(rows[0]) - 1), min_size=1, unique=True))
    index, common, distinct = (
        div_index(forest, runs),
        common_length(forest, runs),
        unique_outputs(forest, runs),
    )
    for item, (row, cut) in enumerate(zip(rows, cuts, strict=True)):
        chosen = [row[run] for run in runs]
        assert none(index[item]) == naive.div_index(chosen, [cut[run] for run in runs])
        assert common[item] == naive.shared_by_all(chosen)
        assert distinct[item] == naive.unique(chosen)


@settings(max_examples=100, deadline=None)
@given(responses())
def test_median_agrees_with_plain_loops(data) -> None:
    rows, cuts = data
    found = against(forest_of(rows, cuts), 0)
    medians = median_position(found.position)
    for run in range(len(rows[0])):
        positions = [p for p in found.position[:, run].tolist() if p != NEVER]
        if positions:
            assert medians[run] == np.median(positions)
        else:
            assert np.isnan(medians[run])


@pytest.mark.parametrize(
    ("a", "b", "cut_a", "cut_b", "position", "identical", "cut"),
    [
        ([5, 6, 7], [5, 6, 7], False, False, None, True, False),  # never diverged
        ([5, 6, 7], [5, 6, 7], True, True, None, True, True),  # the same up to the limit
        ([5, 6], [5, 6, 7], False, False, 2, False, False),  # a prefix, ended by itself
        ([5, 6], [5, 6, 7], True, False, None, False, True),  # a prefix, cut
        ([5, 6], [5, 6, 7], False, True, 2, False, False),  # only the longer one is cut
        ([], [5], False, False, 0, False, False),  # empty against something
        ([], [5], True, False, None, False, True),
        ([], [], False, False, None, True, False),
        ([5], [5], False, False, None, True, False),  # one token
        ([5], [6], False, False, 0, False, False),  # different at 0
        ([5, 6, 7], [5, 9], True, True, 1, False, False),  # apart before any cut
    ],
)
def test_two_responses_by_hand(a, b, cut_a, cut_b, position, identical, cut) -> None:
    found = against(forest_of([[a, b]], [[cut_a, cut_b]]), 0)
    assert none(found.position[0, 1]) == position
    assert (bool(found.identical[0, 1]), bool(found.cut[0, 1])) == (identical, cut)
    assert none(div_index(forest_of([[a, b]], [[cut_a, cut_b]]), [0, 1])[0]) == position


def test_a_cut_response_does_not_hide_a_later_divergence() -> None:
    rows = [[[1, 2], [1, 2, 3, 4], [1, 2, 3, 5]]]
    assert div_index(forest_of(rows, [[True, False, False]]), [0, 1, 2])[0] == 3
    assert div_index(forest_of(rows, [[False, False, False]]), [0, 1, 2])[0] == 2


def test_all_different_at_zero_and_one_setting_only() -> None:
    forest = forest_of([[[1], [2], [3]], [[4], [5], [6]]], [[False] * 3] * 2)
    assert div_index(forest, [0, 1, 2]).tolist() == [0, 0]
    assert unique_outputs(forest, [0, 1, 2]).tolist() == [3, 3]
    assert div_index(forest, [1]).tolist() == [NEVER, NEVER]


def test_time_is_the_last_position_compared() -> None:
    forest = forest_of([[[1, 2], [1, 3]], [[1, 2], [1, 2]], [[], []]], [[False] * 2] * 3)
    assert against(forest, 0).time[:, 1].tolist() == [1, 1, 0]


@pytest.mark.parametrize("place", [0, 255, 256, 257, 4351, 4352, 9999])
def test_long_rows_are_compared_over_block_borders(place: int) -> None:
    a = np.arange(10_000, dtype=np.int32)
    b = a.copy()
    assert common_prefix(a, b) == 10_000
    b[place] += 1
    assert common_prefix(a, b) == place
    assert common_prefix(a, b, start=max(0, place - 3)) == place


def test_many_equal_runs_need_no_recursion() -> None:
    rows = [[[1, 2, 3]] * 1500 + [[1, 2]]]
    forest = forest_of(rows, [[False] * 1501])
    assert against(forest, 0).diverged.sum() == 1
    assert unique_outputs(forest, range(0, 1501, 100)).tolist() == [2]
