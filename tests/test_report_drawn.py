"""What is drawn is what was analysed: each figure's numbers against plain loops over the runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nondet.report import cells, drawn
from nondet.report.context import Context, make_context
from nondet.report.forest import draw_intervals
from nondet.report.style import canvas, house
from nondet.report.view import make_view
from nondet.report.viewer import first_difference
from nondet.runs import Run
from nondet.study import load_study
from tests.factory import Row, make_study, write_run

GRID = [{"batch_size": size, "dtype": dtype} for dtype in ("bf16", "fp32") for size in (1, 4, 8)]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    folder = tmp_path_factory.mktemp("drawn")
    shares = [0, 0.8, 0.6, 0, 0.3, 0]
    make_study(
        folder,
        GRID,
        items=14,
        tokens=20,
        diverge=shares,
        repeats=2,
        limit=22,
        seed=4,
        repeat_diverge=0.2,
    )

    return make_context(make_view(load_study([folder]), 0))


def tokens(run: Run) -> list[list[int]]:
    found: list[list[int]] = run.table(["tokens"])["tokens"].to_pylist()
    return found


def by_label(context: Context) -> dict[str, Run]:
    return {context.labels[run.id]: run for run in context.study.complete}


def reference_of(context: Context, run: Run) -> Run:
    wanted = context.view.references[run.id]
    return next(other for other in context.study.complete if other.id == wanted)


def forks(a: Run, b: Run) -> list[int | None]:
    """First differing positions; a cut response that is a prefix has not diverged."""
    cut = [
        [reason == "length" for reason in run.table(["finish_reason"])["finish_reason"].to_pylist()]
        for run in (a, b)
    ]
    found = []
    for row, (x, y) in enumerate(zip(tokens(a), tokens(b), strict=True)):
        fork = first_difference(x, y)
        shorter = 0 if len(x) < len(y) else 1
        if fork is not None and fork == min(len(x), len(y)) and cut[shorter][row]:
            fork = None
        found.append(fork)
    return found


def test_diverged(context: Context) -> None:
    table = drawn.diverged(context)
    runs = by_label(context)
    assert len(table) == 12 - 2
    for row in table.to_dict("records"):
        run = runs[row["setting"]]
        count = sum(fork is not None for fork in forks(reference_of(context, run), run))
        assert (row["diverged"], row["items"]) == (count, 14)
        assert row["share"] == pytest.approx(count / 14)
        assert 0 <= row["low"] <= row["share"] <= row["high"] <= 1
        assert row["low"] < row["high"]
        assert row["reference"] == context.labels[reference_of(context, run).id]


def test_survival_falls_at_each_fork(context: Context) -> None:
    table = drawn.curves(context, "survival")
    incidence = drawn.curves(context, "incidence")
    runs = by_label(context)
    assert table["setting"].nunique() == 4  # first repeats that are no reference
    for setting, part in table.groupby("setting"):
        run = runs[str(setting)]
        found = [fork for fork in forks(reference_of(context, run), run) if fork is not None]
        falls = part["position"][part["survival"].diff() < 0].tolist()
        assert falls == sorted(set(found))
        assert part["position"].iloc[0] == -1
        assert part["survival"].iloc[0] == 1
        assert ((part["low"] <= part["survival"]) & (part["survival"] <= part["high"])).all()
        last = incidence[incidence["setting"] == setting].iloc[-1]
        assert last["incidence"] <= len(found) / 14 + 1e-12 or not found
        assert part["events"].sum() == len(found)


def test_histogram_counts_each_item_once(context: Context) -> None:
    table = drawn.histogram(context)
    assert table["group"].unique().tolist() == ["bf16", "fp32"]
    for group, part in table.groupby("group"):
        assert part["items"].sum() == 14
        dtype = str(group)
        members = [run for run in context.study.complete if run.factors["dtype"] == dtype]
        members = [run for run in members if not run.repeat]
        earliest = []
        for row in range(14):
            found = [forks(a, b)[row] for a in members for b in members if a.id < b.id]
            known = [fork for fork in found if fork is not None]
            earliest.append(min(known) if known else None)
        never = part[part["bin"] == "never"]["items"].item()
        assert never == earliest.count(None)
        for row in part[part["bin"] != "never"].to_dict("records"):
            low, _, high = str(row["bin"]).partition("–")
            inside = range(int(low), int(high or low) + 1)
            assert row["items"] == sum(fork in inside for fork in earliest if fork is not None)


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_raster(context: Context, name: str) -> None:
    raster = cells.raster(context, name)
    assert raster is not None
    members = [run for run in context.study.complete if run.factors["dtype"] == name]
    reference, *others = [run for run in members if not run.repeat]
    ids = reference.item_ids
    for row, item in enumerate(raster.items):
        place = ids.index(item)
        length = len(tokens(reference)[place])
        positions = [forks(reference, run)[place] for run in others]
        for column, start in enumerate(raster.edges[:-1]):
            agree = np.mean([fork is None or start < fork for fork in positions])
            want = np.nan if start >= length else agree
            assert raster.share_PT[row, column] == pytest.approx(want, nan_ok=True)
    assert raster.edges[0] == 0
    known = [fork for fork in raster.forks if not np.isnan(fork)]
    assert known == sorted(known)


def test_matrix(context: Context) -> None:
    names, share_CC, table = cells.matrix(context)
    runs = context.study.complete
    first = {context.study.label(run): run for run in reversed(runs)}
    second = {context.study.label(run): run for run in runs if run.repeat == 1}
    assert len(names) == 6
    for a, left in enumerate(names):
        for b, right in enumerate(names):
            if a == b:
                pairs = [(first[left], second[left])]
            else:
                pairs = [
                    (x, y)
                    for x in (first[left], second[left])
                    for y in (first[right], second[right])
                ]
            same = [
                np.mean([u == v for u, v in zip(tokens(x), tokens(y), strict=True)])
                for x, y in pairs
            ]
            assert share_CC[a, b] == pytest.approx(min(same))
    assert len(table) == 6 * 7 / 2


def test_accuracies_and_flips(context: Context) -> None:
    table = drawn.accuracies(context)
    runs = by_label(context)
    assert table["is_reference"].sum() == 2
    for row in table.to_dict("records"):
        run = runs[row["setting"]]
        right = np.array(run.table(["correct"])["correct"].to_pylist())
        assert row["accuracy"] == pytest.approx(right.mean())
        assert row["low"] <= row["accuracy"] <= row["high"]
        if not row["is_reference"]:
            before = np.array(reference_of(context, run).table(["correct"])["correct"].to_pylist())
            assert row["turned_wrong"] == ((before == 1) & (right == 0)).sum()
            assert row["turned_right"] == ((before == 0) & (right == 1)).sum()


def test_lengths(context: Context) -> None:
    table = drawn.lengths(context).set_index("item_id")
    lengths = np.array([[len(row) for row in tokens(run)] for run in context.study.complete])
    for place, item in enumerate(context.study.complete[0].item_ids):
        assert table.loc[item, "shortest"] == lengths[:, place].min()
        assert table.loc[item, "longest"] == lengths[:, place].max()
        assert table.loc[item, "mean"] == pytest.approx(lengths[:, place].mean())
    assert table["mean"].is_monotonic_increasing


def test_the_reference_can_be_the_longest_and_the_shortest(tmp_path: Path) -> None:
    for size, lengths in ((1, (5, 3)), (2, (4, 6))):
        rows = [Row(list(range(10, 10 + length)), [-0.1] * length) for length in lengths]
        write_run(tmp_path, {"batch_size": size}, rows)
    table = drawn.lengths(make_context(make_view(load_study([tmp_path])))).set_index("item_id")
    assert table["shortest"].to_dict() == {"item-0000": 4, "item-0001": 3}
    assert table["longest"].to_dict() == {"item-0000": 5, "item-0001": 6}
    assert table["mean"].tolist() == [4.5, 4.5]


def test_forks_have_the_gap_of_the_reference(context: Context) -> None:
    table = drawn.forks(context)
    runs = by_label(context)
    expected = 0
    for run in context.study.complete:
        if not run.repeat and context.view.references[run.id] != run.id:
            found = forks(reference_of(context, run), run)
            # At position 0 nothing came before, so no noise is known.
            expected += sum(fork is not None and fork > 0 for fork in found)
    assert len(table) == expected > 0
    for row in table.to_dict("records"):
        run = runs[row["setting"]]
        place = run.item_ids.index(row["item_id"])
        assert forks(reference_of(context, run), run)[place] == row["position"]
        assert row["gap"] == pytest.approx(0.1, abs=1e-5)  # as the factory makes candidates
        assert row["group"] == run.factors["dtype"]


def test_costs(context: Context) -> None:
    table = drawn.costs(context).set_index("setting")
    for label, run in by_label(context).items():
        assert table.loc[label, "tokens_per_s"] == run.record["tokens_per_s"]
        assert table.loc[label, "peak_memory_mb"] == run.record["peak_memory_mb"]


def test_items_that_fork_early_come_first(context: Context) -> None:
    order = drawn.item_order(context)
    assert sorted(order) == sorted(context.study.complete[0].item_ids)
    earliest: dict[str, float] = {}
    for run in context.study.complete:
        for item, fork in zip(run.item_ids, forks(reference_of(context, run), run), strict=True):
            earliest[item] = min(earliest.get(item, np.inf), np.inf if fork is None else fork)
    assert [earliest[item] for item in order] == sorted(earliest.values())


def test_intervals_are_drawn_where_the_table_says(context: Context) -> None:
    rows: list[dict[str, Any]] = [
        {"setting": "batch_size 1, bf16, repeat 0", "share": 0.5, "low": 0.25, "high": 0.75},
        {"setting": "batch_size 4, bf16, repeat 0", "share": np.nan, "low": np.nan, "high": np.nan},
    ]
    with house():
        _, ax = canvas(4, 2)
        draw_intervals(
            ax, pd.DataFrame(rows), context.looks, "share", "share", notes=["1 of 2", ""]
        )
    line, marker = ax.get_lines()
    assert list(line.get_xdata()) == [0.25, 0.75]
    assert list(marker.get_xdata()) == [0.5]
    texts = [text.get_text().strip() for text in ax.texts]
    assert "none" in texts
    assert "1 of 2" in texts


def test_parts_in_another_format_are_slices_of_their_own(tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [{}, {"fp32": "lm_head"}, {"kv_cache": "bf16"}]
    grid = [{"dtype": "bf16", "batch_size": size, **part} for part in parts for size in (1, 4)]
    view = make_view(make_study(tmp_path, grid, diverge=[0, 0, 1, 1, 1, 1], fork_at=3))
    assert [part.name for part in view.slices] == ["plain", "fp32 lm_head", "kv_cache bf16"]
    # The other parts answer otherwise at every batch size; that is no effect of the batch.
    assert view.summary["diverged"].iloc[1] == 0
    assert set(view.divergence["slice"]) == {"plain", "fp32 lm_head", "kv_cache bf16"}
