"""Repeats that agree in tokens and not in log-probabilities, or where these are not known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from factory import write_run
from test_analysis_undecided import base, cut_short

from nondet import check, compare
from nondet.analysis import analyse
from nondet.metrics.gate import IDENTICAL
from nondet.report.context import make_context
from nondet.report.page import control_entries
from nondet.report.view import make_view
from nondet.study import load_study


def test_repeats_with_other_log_probabilities_are_said_also_where_a_response_was_cut(
    tmp_path: Path,
) -> None:
    rows = base()
    moved = dataclasses.replace(rows[1], logprobs=[x - 1e-3 for x in rows[1].logprobs])
    write_run(tmp_path / "runs", {}, rows)
    write_run(tmp_path / "runs", {}, [cut_short(rows)[0], moved, *rows[2:]], repeat=1)
    found = analyse(load_study([tmp_path]))
    said = next(reason for reason in found.reasons if reason.startswith("Repeats"))
    assert "do not differ" not in said
    assert f"{len(rows[1].tokens)} of " in said
    assert "1 comparison cannot tell" in said
    entry = control_entries(make_context(make_view(load_study([tmp_path]))))[0]
    assert "identical in 29 items, 1 were cut" in entry["text"]
    assert f"{len(rows[1].tokens)} log-probabilities differ" in entry["text"]


def test_repeats_are_not_called_identical_where_log_probabilities_are_unknown(
    tmp_path: Path,
) -> None:
    rows = base()
    silent = [dataclasses.replace(row, logprobs=[]) for row in rows]
    write_run(tmp_path / "runs", {}, rows)
    write_run(tmp_path / "runs", {}, [silent[0], *rows[1:]], repeat=1)
    tokens = sum(len(row.tokens) for row in rows)
    part = f"at {tokens - len(rows[0].tokens):,} of {tokens:,} positions."
    reasons = analyse(load_study([tmp_path])).reasons
    assert any("identical in every token" in one and one.endswith(part) for one in reasons)
    assert not any(one.startswith("Repeats are identical (") for one in reasons)


def test_a_check_of_tokens_says_that_repeats_differ_in_log_probabilities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = base(40)
    moved = dataclasses.replace(rows[1], logprobs=[x - 1e-3 for x in rows[1].logprobs])
    write_run(tmp_path / "runs", {}, rows)
    write_run(tmp_path / "runs", {}, [rows[0], moved, *rows[2:]], repeat=1)
    assert check.main([str(tmp_path)]) == IDENTICAL
    total = sum(len(row.tokens) for row in rows)
    said = (
        f"every token, but at {len(moved.tokens)} of {total:,} positions not the log-probability."
    )
    assert said in capsys.readouterr().out
    assert check.main([str(tmp_path), "--level", "logprobs"]) != IDENTICAL


@pytest.mark.parametrize("command", [compare.main, check.main])
def test_a_comparison_of_tokens_says_that_repeats_differ_in_log_probabilities(
    command: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = base(40)
    moved = dataclasses.replace(rows[1], logprobs=[x - 1e-3 for x in rows[1].logprobs])
    for side, repeat in (("a", rows), ("b", [rows[0], moved, *rows[2:]])):
        write_run(tmp_path / side / "runs", {}, rows)
        write_run(tmp_path / side / "runs", {}, repeat, repeat=1)
    a, b, out = (str(tmp_path / name) for name in ("a", "b", "out.json"))
    total = sum(len(row.tokens) for row in rows)
    said = (
        f"of B repeats every token, but at {len(moved.tokens)} of {total:,} positions not the "
        "log-probability."
    )
    assert command([a, b, "--json", out]) == IDENTICAL
    text = capsys.readouterr().out
    assert said in text
    assert "of A repeats every token" not in text
    assert sum(said in reason for reason in json.loads(Path(out).read_text())["reasons"]) == 1
    # Where log-probabilities are what is compared they are a difference, and not said twice.
    assert command([a, b, "--level", "logprobs"]) != IDENTICAL
    assert said not in capsys.readouterr().out
    assert command([a, a]) == IDENTICAL
    assert "repeats every token" not in capsys.readouterr().out


def test_what_an_error_cut_off_is_not_said_to_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = base(40)
    lost = dataclasses.replace(rows[0], finish_reason="error", outcome="error", correct=None)
    moved = dataclasses.replace(rows[1], logprobs=[x - 1e-3 for x in rows[1].logprobs])
    write_run(tmp_path / "runs", {}, rows)
    write_run(tmp_path / "runs", {}, [lost, moved, *rows[2:]], repeat=1)
    check.main([str(tmp_path)])
    assert "repeats every token compared, but at" in capsys.readouterr().out
