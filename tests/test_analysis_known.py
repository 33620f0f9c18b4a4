"""What enters a number: errors, responses nobody marked, samples, and how many are left (n)."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from factory import Row, forked, make_rows, make_study, write_run
from scipy import stats

from nondet.analysis import analyse
from nondet.metrics.accuracy import best_worst, clopper_pearson, item_flips, std_at_acc
from nondet.metrics.intervals import bonferroni, wilson
from nondet.metrics.sides import compare_stored
from nondet.metrics.verdict import DIFFERENT, INCONCLUSIVE, Evidence, decide
from nondet.study import Study, load_study

LOST = Row([], [], "error", None, None, None)


def base(items: int = 30) -> list[Row]:
    return make_rows(np.random.default_rng(1), items, 20, None)


def parted(rows: list[Row], places: range) -> list[Row]:
    return [
        forked(np.random.default_rng(place), row, 2, 0.0) if place in places else row
        for place, row in enumerate(rows)
    ]


def two(folder: Path, first: list[Row], second: list[Row]) -> Study:
    """A study of two settings, the first named so that it is the reference."""
    rows = {"one": first, "two": second}
    for name, batch_size in (("one", 1), ("two", 2)):
        write_run(folder / "runs", {"batch_size": batch_size}, rows[name], run_id=name)
    return load_study([folder])


def test_errors_are_not_among_those_that_could_diverge(tmp_path: Path) -> None:
    rows = base()
    study = two(tmp_path, rows, [*parted(rows, range(5))[:10], *[LOST] * 20])
    found = analyse(study)
    line = found.summary.set_index("run_id").loc["two"]
    assert (line["items"], line["compared"], line["diverged"]) == (30, 10, 5)
    assert line["div_percent"] == 50
    assert (line["div_low"], line["div_high"]) == tuple(100 * v for v in wilson(5, 10)[1:3])
    assert (line["truncated"], line["errors"]) == (0, 20)
    assert line["mean_length"] == np.mean([len(row.tokens) for row in rows[:10]])
    index = found.div_index.iloc[0]
    assert (index["items"], index["n"], index["value"]) == (10, 10, 0.5)
    length = found.avg_std_output_length.iloc[0]
    assert (length["items"], length["n"], length["value"]) == (10, 10, 0)
    assert length["truncated_share"] == 0
    answers = found.answers.set_index("metric")
    assert (answers["value"]["TARr@N"], answers["n"]["TARr@N"]) == (0.5, 10)
    assert answers["n"]["TARa@N"] == answers["items"]["TARa@N"] == 10
    difference = compare_stored(*study.complete)
    assert (difference.share, difference.low) == (0.5, wilson(5, 10).low)


def test_responses_nobody_marked_have_no_answers_that_agree(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, answer=None, outcome=None, correct=None) for row in base()]
    second = [
        dataclasses.replace(row, answer=None, outcome=None, correct=None)
        for row in parted(rows, range(10))
    ]
    found = analyse(two(tmp_path, rows, second)).answers.set_index("metric")
    assert (found["items"]["TARr@N"], found["n"]["TARr@N"]) == (30, 30)
    assert found["value"]["TARr@N"] == pytest.approx(2 / 3)
    assert found["n"]["TARa@N"] == 0
    assert math.isnan(found["value"]["TARa@N"])


def test_no_answer_found_by_the_marker_is_an_answer_of_its_own(tmp_path: Path) -> None:
    none = [dataclasses.replace(row, answer=None, outcome="no_answer", correct=0) for row in base()]
    found = analyse(two(tmp_path, none, [base()[0], *none[1:]])).answers.set_index("metric")
    assert found["n"]["TARa@N"] == 30
    assert found["value"]["TARa@N"] == pytest.approx(29 / 30)


def test_the_accuracy_stands_beside_those_that_were_marked(tmp_path: Path) -> None:
    rows = base()
    lost = [dataclasses.replace(row, outcome="marker_error", correct=None) for row in rows[:20]]
    found = analyse(two(tmp_path, rows, [*lost, *rows[20:]])).summary.set_index("run_id")
    assert found["marked"].tolist() == [30, 10]
    assert found["acc_low"]["two"] == wilson(sum(row.correct for row in rows[20:]), 10).low


def test_the_accuracy_of_samples_counts_the_items_that_were_marked(tmp_path: Path) -> None:
    rows = [dataclasses.replace(row, correct=1, outcome="right") for row in base(8)]
    lost = [dataclasses.replace(row, correct=None, outcome="marker_error") for row in rows]
    factors = {"temperature": 0.7, "samples": 4}
    write_run(tmp_path / "runs", factors, [*rows[:4], *lost[4:]], samples=4)
    found = analyse(load_study([tmp_path])).summary.iloc[0]
    assert (found["marked"], found["accuracy"]) == (4, 1)
    assert found["acc_low"] == wilson(1, 1).low


def test_samples_flip_together() -> None:
    item_P = np.repeat(np.arange(4), 4)
    a, b = np.ones(16, dtype=np.int8), np.ones(16, dtype=np.int8)
    b[:8] = 0  # two items, wrong in all four samples
    assert item_flips(a, b, item_P) == (2, 0)
    assert item_flips(a, b, np.arange(16)) == (8, 0)
    b[0] = -1
    assert item_flips(a, b, item_P) == (2, 0)
    best, worst = best_worst(np.stack([a, b]), item_P)
    assert (worst.value, worst.n) == (8 / 15, 4)
    assert worst.low == pytest.approx(wilson(4 * 8 / 15, 4).low)
    assert best.value == 1


def test_p_of_flips_counts_items(tmp_path: Path) -> None:
    settings = [{"temperature": 0.7, "samples": 8, "batch_size": size} for size in (1, 2)]
    study = make_study(tmp_path, settings, items=6, samples=8, diverge=0.9, seed=2)
    a, b = (
        np.array(run.table(["correct"])["correct"].to_pylist()).reshape(6, 8).sum(axis=1)
        for run in study.complete
    )
    up, down = int((b > a).sum()), int((b < a).sum())
    expected = stats.binomtest(down, up + down, 0.5).pvalue if up + down else 1.0
    line = analyse(study).flips.iloc[0]
    assert line["p"] == pytest.approx(expected)
    assert line["only_a"] + line["only_b"] > up + down
    assert compare_stored(*study.complete).mcnemar_p == pytest.approx(expected)


def test_equal_accuracies_of_samples_are_bounded_by_their_items() -> None:
    same = np.ones((4, 40), dtype=np.int8)
    item_P = np.repeat(np.arange(10), 4)
    bound = clopper_pearson(0, 10).high
    assert std_at_acc(same, item_P=item_P).high == math.sqrt(bound / 40)
    assert std_at_acc(same, item_P=np.arange(40)) == std_at_acc(same)


def test_the_worst_of_many_pairs_is_no_finding_by_itself() -> None:
    """Every run draws some tokens anew, whatever its setting: settings differ as repeats do."""
    rng = np.random.default_rng(0)
    wrong, studies, items = 0, 60, 500
    for _ in range(studies):
        moved = rng.random((37, items)) < 0.1
        pairs = [
            (a, b, int((moved[a] | moved[b]).sum())) for a in range(37) for b in range(a + 1, 37)
        ]
        repeats = [(count, items, "r") for a, b, count in pairs if (a, b) == (0, 1)]
        others = [(count, items, "s") for a, b, count in pairs if (a, b) != (0, 1)]
        wrong += decide(Evidence(37, 0, items, 9999, repeats, others, 0.1))[0] == DIFFERENT
    assert wrong / studies <= 0.05
    plain = Evidence(3, 0, 100, 9999, [(2, 100, "r")], [(90, 100, "s")] * 700, 0.1)
    assert decide(plain)[0] == DIFFERENT
    assert decide(dataclasses.replace(plain, setting_pairs=[(3, 100, "s")]))[0] == INCONCLUSIVE
    assert bonferroni(1) == 0.95
    assert bonferroni(10) == pytest.approx(0.995)


def test_factors_are_not_blamed_for_errors(tmp_path: Path) -> None:
    rows = base()
    found = analyse(two(tmp_path, rows, [*rows[:10], *[LOST] * 20])).attribution.iloc[0]
    assert (found["value"], found["n"], found["low"]) == (1, 10, wilson(10, 10).low)
