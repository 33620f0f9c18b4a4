"""Verdicts where something cannot be told: errors, cut responses, samples, noise of repeats."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from factory import Row, forked, make_rows, make_study, write_run

from nondet import check, compare
from nondet.analysis import analyse
from nondet.metrics.gate import IDENTICAL, Matched
from nondet.metrics.gate import INCONCLUSIVE as UNDECIDED
from nondet.metrics.gate import decide as decide_gate
from nondet.metrics.intervals import percent, share_of_rows, wilson
from nondet.metrics.sides import compare_stored
from nondet.metrics.verdict import DIFFERENT, INCONCLUSIVE, PASS, Evidence, decide
from nondet.study import load_study

LOST = Row([], [], "error", None, None, None)


def base(items: int = 30) -> list[Row]:
    return make_rows(np.random.default_rng(1), items, 20, None)


def unmarked(rows: list[Row]) -> list[Row]:
    return [dataclasses.replace(row, answer=None, outcome=None, correct=None) for row in rows]


def cut_short(rows: list[Row]) -> list[Row]:
    return [Row(rows[0].tokens[:3], rows[0].logprobs[:3], "length"), *rows[1:]]


@pytest.mark.parametrize("second", [({"batch_size": 2}, 0), ({"batch_size": 1}, 1)])
def test_a_response_cut_early_is_no_pass(tmp_path: Path, second: tuple[dict, int]) -> None:
    factors, repeat = second
    write_run(tmp_path / "runs", {"batch_size": 1}, base())
    write_run(tmp_path / "runs", factors, cut_short(base()), repeat=repeat)
    found = analyse(load_study([tmp_path]))
    assert found.verdict == INCONCLUSIVE
    assert found.reasons[0].startswith("1 comparison cannot tell")
    assert "0 of 29 items" in found.reasons[-2]
    assert not any("Repeats are identical" in reason for reason in found.reasons)


def test_errors_are_not_counted_as_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", {}, unmarked(base()))
    write_run(tmp_path / "runs", {}, [LOST] * 30, repeat=1)
    found = analyse(load_study([tmp_path]))
    assert found.verdict == INCONCLUSIVE
    assert "Repeats do not differ (1 pair of runs), but 30 comparisons cannot tell." in (
        found.reasons
    )
    assert any("0 of 0 items" in reason and "100.0%" in reason for reason in found.reasons)
    assert check.main([str(tmp_path)]) == UNDECIDED


def test_an_error_is_no_other_answer(tmp_path: Path, capsys) -> None:
    rows = base(40)
    write_run(tmp_path / "runs", {"batch_size": 1}, rows)
    write_run(tmp_path / "runs", {"batch_size": 2}, [rows[0], LOST, *rows[2:]])
    for level in ("answers", "tokens", "logprobs"):
        assert check.main([str(tmp_path), "--level", level]) == UNDECIDED
        assert "1 responses ended in an error." in capsys.readouterr().out
    # What was said before the error still counts.
    parted = [rows[0], Row([1, 1], [-1.0, -1.0], "error", None, None, None), *rows[2:]]
    write_run(tmp_path / "parted" / "a", {"batch_size": 1}, rows)
    write_run(tmp_path / "parted" / "b", {"batch_size": 2}, parted)
    assert compare.main([str(tmp_path / "parted" / name) for name in "ab"]) == 1


def test_last_bits_are_claimed_only_where_they_are_known(tmp_path: Path) -> None:
    rows = base()
    write_run(tmp_path / "runs", {"batch_size": 1}, rows)
    write_run(tmp_path / "runs", {"batch_size": 2}, rows)
    write_run(
        tmp_path / "runs",
        {"batch_size": 4},
        [dataclasses.replace(row, logprobs=[]) for row in rows],
    )
    tokens = sum(len(row.tokens) for row in rows)
    study = load_study([tmp_path])
    silent = [not len(run.table(["logprobs"])["logprobs"][0]) for run in study.runs]
    known = 0 if silent[0] else tokens
    reasons = analyse(study).reasons
    if known:
        assert any(f"at {known:,} of {2 * tokens:,} positions" in reason for reason in reasons)
    assert "Log-probabilities are equal to the last bit." not in reasons
    full = Evidence(2, 0, 40, 999, [], [(0, 40, "s")], 0.0, logprobs_compared=9, logprobs_common=9)
    assert "Log-probabilities are equal to the last bit." in decide(full)[1]
    part = dataclasses.replace(full, logprobs_common=10)
    assert "at 9 of 10 positions" in decide(part)[1][1]


def test_samples_of_an_item_are_no_items_in_a_verdict(tmp_path: Path, capsys) -> None:
    settings = [{"temperature": 0.7, "samples": 3, "batch_size": size} for size in (1, 2)]
    study = make_study(tmp_path, settings, items=10, samples=3, diverge=0.5)
    found = analyse(study)
    count = int(found.pairs["diverged"][0])
    share = wilson(count / 3, 10)
    expected = f"{count} of 30 responses ({share.low:.1%} to {share.high:.1%})"
    assert expected in found.reasons[-1]
    assert check.main([str(tmp_path), "--allow", "0.9"]) == UNDECIDED
    assert f"{count} of 30 responses differ in tokens, which is allowed" in capsys.readouterr().out
    # 4 of 12 responses of 3 items against 0 of 12: no finding with the items as n.
    few = Evidence(3, 0, 3, 999, [(1, 12, "r")], [(9, 12, "s")], 0.0, samples=4)
    assert decide(few)[0] == INCONCLUSIVE
    assert decide(dataclasses.replace(few, samples=1))[0] == DIFFERENT


def test_repeats_are_judged_at_the_level_asked_for(tmp_path: Path) -> None:
    rows = base()

    def noisy(seed: int) -> list[Row]:
        rng = np.random.default_rng(seed)
        return [
            dataclasses.replace(
                row, logprobs=[value - abs(rng.normal(0, 1e-3)) for value in row.logprobs]
            )
            for row in rows
        ]

    def reworded(seed: int) -> list[Row]:
        return [
            dataclasses.replace(
                forked(np.random.default_rng(seed + place), row, 3, 0.0),
                answer=row.answer,
                outcome=row.outcome,
                correct=row.correct,
            )
            for place, row in enumerate(rows)
        ]

    for name, make in (("noisy", noisy), ("reworded", reworded)):
        for side in range(2):
            for repeat in range(2):
                moved = make(1000 * side + 100 * repeat)
                write_run(tmp_path / name / str(side), {}, moved, repeat=repeat)
    noisy_sides = [str(tmp_path / "noisy" / side) for side in "01"]
    assert compare.main([*noisy_sides, "--level", "logprobs"]) == UNDECIDED
    assert compare.main(noisy_sides) == IDENTICAL
    reworded_sides = [str(tmp_path / "reworded" / side) for side in "01"]
    assert compare.main([*reworded_sides, "--level", "answers"]) == IDENTICAL
    assert compare.main(reworded_sides) == UNDECIDED


def test_the_largest_known_logprob_difference_is_named_in_any_order(tmp_path: Path) -> None:
    rows = base()
    moved = [dataclasses.replace(row, logprobs=[v - 0.25 for v in row.logprobs]) for row in rows]
    silent = [dataclasses.replace(row, logprobs=[]) for row in rows]
    for name, made in (("a", rows), ("b", moved), ("c", silent)):
        write_run(tmp_path / name, {}, made)
    runs = {name: load_study([tmp_path / name]).complete[0] for name in "abc"}
    pairs = [Matched(name, "a", name, compare_stored(runs["a"], runs[name])) for name in ("b", "c")]
    assert math.isnan(pairs[1].difference.logprobs["max_abs_dlogprob"])
    for order in (pairs, pairs[::-1]):
        assert "by up to 0.25" in decide_gate(order, [], 30, [])[1][-1]


def test_junit_agrees_with_the_exit_code(tmp_path: Path) -> None:
    make_study(tmp_path / "study", items=40, diverge=0.3)
    file = tmp_path / "out.xml"
    words = [str(tmp_path / "study"), "--junit", str(file)]
    assert check.main([*words, "--allow", "0.9"]) == IDENTICAL
    assert ElementTree.parse(file).getroot().attrib["failures"] == "0"
    assert not ElementTree.parse(file).getroot().findall(".//failure")
    assert check.main(words) == 1
    assert ElementTree.parse(file).getroot().attrib["failures"] == "2"


def test_percentages_never_round_to_none_or_all() -> None:
    found = [percent(value) for value in (0, 1, 0.5, 0.00025, 0.0004, 0.99996, 0.9995, 0.9994)]
    assert found == ["0.0%", "100.0%", "50.0%", "0.025%", "0.04%", "99.996%", "99.95%", "99.9%"]
    verdict, reasons = decide(Evidence(2, 0, 12_032, 9999, [], [(0, 12_032, "s")], 0.0))
    assert verdict == PASS
    assert "at most 0.025% of such items" in reasons[0]


def test_shares_of_rows_count_items() -> None:
    assert share_of_rows(3, 12, 12) == wilson(3, 12)
    assert share_of_rows(3, 12, 4) == wilson(1, 4)
    assert share_of_rows(3, 12, 10**6) == wilson(3, 12)
    assert math.isnan(share_of_rows(0, 0, 0).value)


@pytest.mark.parametrize("second", [({"batch_size": 2}, 0), ({"batch_size": 1}, 1)])
def test_runs_without_a_token_are_not_identical(
    tmp_path: Path, second: tuple[dict, int], capsys
) -> None:
    factors, repeat = second
    write_run(tmp_path / "runs", {"batch_size": 1}, [Row([], [])] * 40)
    write_run(tmp_path / "runs", factors, [Row([], [])] * 40, repeat=repeat)
    assert check.main([str(tmp_path)]) == UNDECIDED
    assert "no token to compare" in capsys.readouterr().out
    assert check.main([str(tmp_path), "--level", "answers"]) == IDENTICAL


def test_what_is_allowed_is_a_share_of_items_at_every_level(tmp_path: Path) -> None:
    rows = base()
    one = dataclasses.replace(rows[0], logprobs=[value - 0.1 for value in rows[0].logprobs])
    write_run(tmp_path, {"batch_size": 1}, rows)
    write_run(tmp_path, {"batch_size": 2}, [one, *rows[1:]])
    words = [str(tmp_path), "--level", "logprobs"]
    assert check.main([*words, "--allow", "0.2"]) == IDENTICAL
    assert check.main([*words, "--allow", "0.03"]) == 1
    assert check.main(words) == 1


def test_what_is_allowed_is_allowed_to_repeats_too(tmp_path: Path) -> None:
    rows = base(40)
    moved = [forked(np.random.default_rng(0), rows[0], 2, 0.0), *rows[1:]]
    write_run(tmp_path, {}, rows)
    write_run(tmp_path, {}, moved, repeat=1)
    assert check.main([str(tmp_path)]) == 1
    assert check.main([str(tmp_path), "--allow", "0.02"]) == 1
    assert check.main([str(tmp_path), "--allow", "0.03"]) == IDENTICAL
