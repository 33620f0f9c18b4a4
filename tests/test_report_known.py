"""The report says what is not known, counts what it shows, and rounds nothing to none or all."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from factory import Row, forked, make_rows, make_study, write_run

from nondet.analysis import analyse
from nondet.metrics.intervals import clopper_pearson
from nondet.report import cells, drawn, panels, tables
from nondet.report.context import Context, make_context
from nondet.report.page import control_entries
from nondet.report.published import beside_published, matching, published_values
from nondet.report.sections import short_summary
from nondet.report.style import house
from nondet.report.view import make_view
from nondet.report.viewer import viewer_data
from nondet.study import load_study

PAPER_MODEL = "x:org/DeepSeek-R1-Distill-Qwen-7B"


def base(items: int = 30) -> list[Row]:
    return make_rows(np.random.default_rng(1), items, 20, None)


def two(folder: Path, first: list[Row], second: list[Row], repeat: bool = False) -> Context:
    """Two settings, or a setting and its repeat; the first named so that it is the reference."""
    write_run(folder / "runs", {"batch_size": 1}, first, run_id="one")
    factors = {"batch_size": 1 if repeat else 2}
    write_run(folder / "runs", factors, second, run_id="two", repeat=int(repeat))
    return make_context(make_view(load_study([folder])))


def errors_after(rows: list[Row], place: int) -> list[Row]:
    return [
        Row(row.tokens[:place], row.logprobs[:place], "error", None, None, None) for row in rows
    ]


def test_nothing_agrees_behind_the_end_of_an_error(tmp_path: Path) -> None:
    rows = base()
    context = two(tmp_path, rows, [*rows[:10], *errors_after(rows[10:], 2)])
    found = cells.raster(context, "")
    assert found is not None
    for item, share in zip(found.items, found.share_PT, strict=True):
        place = int(item.split("-")[1])
        length = len(rows[place].tokens)
        assert (share[: length if place < 10 else 2] == 1).all()
        assert np.isnan(share[length if place < 10 else 2 :]).all()
    shown = drawn.diverged(context)
    assert shown["items"].tolist() == [10]
    assert cells.matrix(context)[2]["share"].tolist() == [1.0]
    short = short_summary(context.view.summary)
    assert short["compared"].tolist() == [30, 10]
    assert short["marked"].tolist() == [30, 10]


def test_the_accuracy_figure_counts_the_marked(tmp_path: Path) -> None:
    rows = base()
    lost = [dataclasses.replace(row, outcome="marker_error", correct=None) for row in rows[:20]]
    table = drawn.accuracies(two(tmp_path, rows, [*lost, *rows[20:]]))
    assert table["items"].tolist() == [30, 10]


def test_columns_of_what_enters_stand_only_where_it_is_not_all(tmp_path: Path) -> None:
    short = short_summary(two(tmp_path, base(), base()).view.summary)
    assert {"compared", "marked"}.isdisjoint(short.columns)


def test_repeats_alone_are_more_than_one_run(tmp_path: Path) -> None:
    make_study(tmp_path, [{}], items=10, repeats=3, repeat_diverge=0.5)
    context = make_context(make_view(load_study([tmp_path])))
    assert panels.histogram_panel(context).words == panels.NO_SETTINGS
    single = make_study(tmp_path / "single", [{}], items=10)
    context = make_context(make_view(single))
    assert panels.histogram_panel(context).words == panels.NO_PAIR


def test_the_axis_ends_behind_a_fork_at_the_end_of_the_reference(tmp_path: Path) -> None:
    short, long = Row([1, 2, 3], [-1.0] * 3), Row([1, 2, 3, 4, 5], [-1.0] * 5)
    context = two(tmp_path, [short] * 2, [long] * 2)
    assert drawn.curves(context, "survival")["position"].max() == 3
    assert drawn.last_position(context) == 3


def test_forks_without_known_noise_are_counted_and_not_drawn(tmp_path: Path) -> None:
    rows = base()
    moved = [
        forked(np.random.default_rng(place), row, place % 3, 1e-3) for place, row in enumerate(rows)
    ]
    context = two(tmp_path / "some", rows, moved)
    table = drawn.forks(context)
    assert len(table) == 20
    assert (table["position"] > 0).all()
    assert (table["noise"] > 0).all()
    with house():
        note = panels.gap_panel(context).note
    assert "(20)" in note
    assert "10 more have no known gap or noise" in note
    silent = [dataclasses.replace(row, logprobs=[]) for row in moved]
    context = two(tmp_path / "none", rows, silent)
    assert drawn.forks(context).empty
    assert "no log-probabilities" in panels.gap_panel(context).words


def test_every_sample_is_in_the_viewer(tmp_path: Path) -> None:
    settings = [{"temperature": 0.7, "samples": 3, "batch_size": size} for size in (1, 2)]
    study = make_study(tmp_path, settings, items=4, samples=3, diverge=0.5)
    context = make_context(make_view(study))
    order = drawn.item_order(context)
    assert len(order) == 12
    rows = {
        f"{row['item_id']}#{row['sample']}": len(row["tokens"])
        for row in study.complete[0].table().to_pylist()
    }
    data = viewer_data(study, order, ["a", "b"], None)
    assert {item["id"]: item["responses"][0]["n"] for item in data["items"]} == rows
    assert "4 items, 3 responses each" in context.facts
    assert any("sampled" in note for note in analyse(study).notes)
    one = make_context(make_view(load_study([study.complete[0].folder])))
    assert sorted(drawn.item_order(one)) == sorted(rows)


def test_a_repeat_that_was_cut_did_not_diverge(tmp_path: Path) -> None:
    rows = base()
    short = Row(rows[0].tokens[:3], rows[0].logprobs[:3], "length")
    entry = control_entries(two(tmp_path, rows, [short, *rows[1:]], repeat=True))[0]
    assert entry["state"] == "bad"
    assert "cannot tell" in entry["text"]
    assert "0 of 30" not in entry["text"]


def test_nothing_is_rounded_to_none_or_all() -> None:
    assert tables.with_interval(1999 / 2000, 0.9972, 1.0) == "0.9995 (0.997 to 1.000)"
    assert tables.with_interval(0.0001, 0.0, 0.00041) == "0.0001 (0.000 to 0.0004)"
    assert tables.show(99.999) == "99.999"
    assert tables.show(0.99999) == "0.99999"
    assert [tables.show(value) for value in (100.0, 1.0, 0.0, 12.3456)] == [
        "100",
        "1",
        "0",
        "12.35",
    ]
    row = {"is_reference": False, "turned_wrong": 20, "turned_right": 1, "p": 2.1e-5}
    assert drawn.flip_words(row) == "+1 −20, p 2e-05"
    assert drawn.flip_words({**row, "p": 0.25}) == "+1 −20, p 0.25"


def test_texts_of_figures_round_nothing_to_all(tmp_path: Path) -> None:
    rows = [
        dataclasses.replace(row, tokens=row.tokens[:2], logprobs=row.logprobs[:2])
        for row in base(1200)
    ]
    context = two(tmp_path, rows, [forked(np.random.default_rng(0), rows[0], 1, 0.0), *rows[1:]])
    with house():
        text = panels.heat_panel(context).alt
    assert "99.9%" in text


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_sampled_answers_do_not_stand_beside_greedy_ones(
    tmp_path: Path, temperature: float
) -> None:
    for size in (1, 2):
        factors = {"batch_size": size, "model": PAPER_MODEL, "temperature": temperature}
        more = {"task": {"name": "aime24", "items": 30, "marker": "m"}}
        write_run(tmp_path / "runs", {**factors, "dtype": "bf16"}, base(), **more)
    view = make_view(load_study([tmp_path]))
    assert len(matching(view, published_values())) == (0 if temperature else 16)
    table = beside_published(view)
    assert table.empty == bool(temperature)
    if not temperature:
        assert set(table["our_items"]) == {30}
        assert not pd.isna(table["ours"]).any()
        assert not math.isnan(table["published"].iloc[0])


def test_sampled_answers_stand_beside_as_many_samples(tmp_path: Path) -> None:
    for size in (1, 2):
        factors = {"batch_size": size, "model": PAPER_MODEL, "temperature": 0.7, "samples": 16}
        more = {"task": {"name": "aime24", "items": 30, "marker": "m"}}
        rows = base(4 * 16)
        write_run(tmp_path / "runs", {**factors, "dtype": "bf16"}, rows, samples=16, **more)
    view = make_view(load_study([tmp_path]))
    table = beside_published(view)
    assert table[["metric", "dtype"]].values.tolist() == [["std_pass_at_1", "bf16"]]
    assert table["published_settings"].item().endswith("n=16")
    assert table["ours"].item() == 0
    # The interval counts the items and not their samples.
    assert table["high"].item() == 100 * std_at_acc_of(4)


def std_at_acc_of(items: int) -> float:
    """Upper end where no item was seen to change."""
    return math.sqrt(clopper_pearson(0, items).high / (4 * items))


@pytest.mark.filterwarnings("error")
def test_infinite_gaps_are_drawn_at_the_edge(tmp_path: Path) -> None:
    def masked(rows: list[Row]) -> list[Row]:
        """The second candidate ruled out, as after top_p."""
        return [
            dataclasses.replace(
                row,
                top_ids=[[token, token + 1] for token in row.tokens],
                top_logprobs=[[value, -math.inf] for value in row.logprobs],
            )
            for row in rows
        ]

    rows = base()
    moved = [forked(np.random.default_rng(place), row, 2, 1e-3) for place, row in enumerate(rows)]
    context = two(tmp_path, masked(rows), masked(moved))
    table = drawn.forks(context)
    assert np.isinf(table["gap"]).all()
    with house():
        figure = panels.gap_panel(context).figure
        assert figure is not None
        figure.draw_without_rendering()
    low, high = figure.axes[0].get_ylim()
    drawn_at = np.concatenate([line.get_ydata() for line in figure.axes[0].lines[1:]])
    assert ((low <= drawn_at) & (drawn_at <= high)).all()
    data = viewer_data(context.study, drawn.item_order(context), ["a", "b"], None)
    json.dumps(data, allow_nan=False)
    assert data["items"][0]["responses"][0]["tops"]["2"][1][2] is None


def test_what_was_cut_too_early_is_not_counted_as_never(tmp_path: Path) -> None:
    rows = base()
    context = two(tmp_path, rows, [*rows[:10], *errors_after(rows[10:], 2)])
    table = drawn.histogram(context).set_index("bin")
    assert table["items"]["never"] == 10
