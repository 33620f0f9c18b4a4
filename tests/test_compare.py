"""The comparison and the gate: exit codes, outputs, refusals, and detectors by mutation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from factory import Row, make_study, table_of, write_run

from nondet import check, compare
from nondet.metrics.gate import (
    DIFFERENT,
    IDENTICAL,
    INCONCLUSIVE,
    USAGE,
    Matched,
    decide,
    differing,
)
from nondet.metrics.ragged import from_rows
from nondet.metrics.responses import Outcomes
from nondet.metrics.sides import Side, compare_sides, compare_stored
from nondet.runs import write_table
from nondet.study import load_study

STUDIES = 1000


def random_side(rng: np.random.Generator) -> Side:
    """A small run in memory; some responses are cut, some have no answer or no log-probability."""
    items = int(rng.integers(1, 5))
    lengths = rng.integers(1, 12, items)
    logprobs = [-rng.exponential(1, n).astype(np.float32) for n in lengths]
    logprobs[0][0] = np.nan if rng.random() < 0.2 else logprobs[0][0]
    return Side(
        from_rows([rng.integers(0, 50, n) for n in lengths], np.int32),
        from_rows(logprobs, np.float32),
        Outcomes(
            tuple(map(str, range(items))),
            np.arange(items),
            lengths.astype(np.int64),
            rng.random(items) < 0.3,
            np.zeros(items, dtype=bool),
            rng.integers(-1, 2, items).astype(np.int8),
            np.array([str(answer) for answer in rng.integers(0, 3, items)], dtype=object),
        ),
    )


def copy_of(side: Side) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return (
        [row.copy() for row in side.tokens.rows()],
        [row.copy() for row in side.logprobs.rows()],
    )


def mutate(side: Side, kind: str, rng: np.random.Generator) -> Side:
    """The same run with one thing changed."""
    tokens, logprobs = copy_of(side)
    item = int(rng.integers(len(tokens)))
    place = int(rng.integers(len(tokens[item])))
    outcomes = side.outcomes
    if kind == "token":
        tokens[item][place] += 1 + rng.integers(100)
    elif kind == "logprob":
        old = logprobs[item][place]
        logprobs[item][place] = -1.0 if np.isnan(old) else np.nextafter(old, np.float32(-99))
    elif kind == "length":
        tokens[item], logprobs[item] = tokens[item][:-1], logprobs[item][:-1]
    elif kind == "answer":
        answers = outcomes.answers_P.copy()
        answers[item] = "changed" if rng.random() < 0.5 else ""
        outcomes = dataclasses.replace(outcomes, answers_P=answers)
    moved = from_rows(tokens, np.int32)
    outcomes = dataclasses.replace(outcomes, lengths_P=moved.lengths)
    return Side(moved, from_rows(logprobs, np.float32), outcomes)


def verdict(a: Side, b: Side, level: str) -> int:
    found = Matched("pair", "a", "b", compare_sides(a, b))
    return decide([found], [], 10**6, [], level=level)[0]


@pytest.mark.parametrize("kind", ["token", "logprob", "length", "answer"])
def test_every_mutation_is_found(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(STUDIES):
        side = random_side(rng)
        other = mutate(side, kind, rng)
        assert verdict(side, other, "logprobs") == DIFFERENT


def test_nothing_is_found_in_unchanged_studies() -> None:
    rng = np.random.default_rng(0)
    for _ in range(STUDIES):
        side = random_side(rng)
        found = compare_sides(side, mutate(side, "none", rng))
        assert (found.identical, found.diverged) == (found.items, 0)
        assert (found.logprobs_differ, found.lengths_differ, found.answers_differ) == (0, 0, 0)
        level = "logprobs" if found.logprobs_compared else "tokens"
        assert (
            decide([Matched("pair", "a", "b", found)], [], 10**6, [], level=level)[0] == IDENTICAL
        )


@pytest.mark.parametrize("kind", ["token", "logprob", "length", "answer", "none"])
def test_mutations_on_disk_through_the_command(kind: str, tmp_path: Path, capsys) -> None:
    rng = np.random.default_rng(1)
    for place in range(6):
        study = make_study(tmp_path / f"{place}-a", [{}], items=30, tokens=6, seed=place)
        other = make_study(tmp_path / f"{place}-b", [{}], items=30, tokens=6, seed=place)
        run = other.complete[0]
        table = run.table().to_pylist()
        row = table[int(rng.integers(30))]
        if kind == "token":
            row["tokens"][int(rng.integers(len(row["tokens"])))] += 1
        elif kind == "logprob":
            row["logprobs"][0] = float(np.nextafter(np.float32(row["logprobs"][0]), -9))
        elif kind == "length":
            for name, width in (
                ("tokens", 1),
                ("logprobs", 1),
                ("top_ids", 5),
                ("top_logprobs", 5),
            ):
                row[name] = row[name] + row[name][-width:]
        elif kind == "answer":
            row["answer"] = "another"
        changed = table_of([Row([1], [0.0])]).schema
        write_table(run.folder / "tokens.parquet", run.table().from_pylist(table, changed))
        folders = [str(study.runs[0].folder.parent.parent), str(run.folder.parent.parent)]
        code = check.main([*folders, "--level", "logprobs"])
        assert code == (IDENTICAL if kind == "none" else DIFFERENT), capsys.readouterr().out
        tokens = check.main(folders)
        assert tokens == (IDENTICAL if kind in ("none", "logprob") else DIFFERENT)


def folders(tmp_path: Path, **changes) -> tuple[Path, Path]:
    common = {"items": 30, "tokens": 8, "diverge": 0.5, "repeats": 2}
    make_study(tmp_path / "a", **common)
    make_study(tmp_path / "b", **{**common, **changes})
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("command", [compare.main, check.main])
def test_exit_codes(command, tmp_path: Path, capsys) -> None:
    a, b = folders(tmp_path)
    assert command([str(a), str(b)]) == IDENTICAL
    out = capsys.readouterr().out
    assert out.startswith("IDENTICAL")
    assert "29 items are needed" in out
    assert command([str(a), str(b), "--rate", "0.01"]) == INCONCLUSIVE
    assert "299 items are needed" in capsys.readouterr().out
    other = tmp_path / "c"
    make_study(other, items=30, tokens=8, diverge=0.5, repeats=2, seed=5)
    assert command([str(a), str(other)]) == DIFFERENT
    assert "first at token" in capsys.readouterr().out
    assert command([str(a), str(other), "--allow", "0.999"]) == DIFFERENT
    assert command([str(a), str(tmp_path / "nothing")]) == USAGE
    assert "no run folder" in capsys.readouterr().err


def test_usage_errors_exit_with_two(tmp_path: Path) -> None:
    for arguments in (["only"], ["a", "b", "--rate", "0"], ["a", "b", "--level", "text"]):
        with pytest.raises(SystemExit) as stop:
            compare.main(arguments)
        assert stop.value.code == USAGE


@pytest.mark.parametrize("field", ["model_fingerprint", "prompts_fingerprint"])
def test_runs_that_must_not_be_compared_name_the_field(field: str, tmp_path: Path, capsys) -> None:
    rows = [Row([1, 2], [-1.0, -1.0])]
    write_run(tmp_path / "a", {}, rows)
    write_run(tmp_path / "b", {}, rows, **{field: "other"})
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == USAGE
    assert f"not comparable, {field}" in capsys.readouterr().err
    write_run(tmp_path / "c", {"max_new_tokens": 9}, rows)
    assert check.main([str(tmp_path / "a"), str(tmp_path / "c")]) == USAGE
    assert "max_new_tokens: 64 against 9" in capsys.readouterr().err


def test_single_runs_of_different_settings_are_compared(tmp_path: Path) -> None:
    study = make_study(tmp_path, items=30, diverge=0.9)
    one, two = (str(run.folder) for run in study.runs)
    assert compare.main([one, one]) == IDENTICAL
    assert compare.main([one, two]) == DIFFERENT
    assert check.main([one]) == INCONCLUSIVE


def test_one_study_is_checked_within(tmp_path: Path) -> None:
    make_study(tmp_path / "same", items=30, diverge=0, repeats=2)
    make_study(tmp_path / "parted", items=30, diverge=0.5, repeats=2)
    make_study(tmp_path / "noisy", items=30, diverge=0, repeats=2, repeat_diverge=0.5)
    make_study(tmp_path / "repeats", [{}], items=30, repeats=2, repeat_diverge=0.5)
    make_study(tmp_path / "quiet", [{}], items=30, repeats=2)
    make_study(tmp_path / "failed", items=30, diverge=0, failed=[1])
    codes = {path.name: check.main([str(path)]) for path in sorted(tmp_path.iterdir())}
    assert codes == {
        "same": IDENTICAL,
        "parted": DIFFERENT,
        "noisy": INCONCLUSIVE,
        "repeats": DIFFERENT,
        "quiet": IDENTICAL,
        "failed": INCONCLUSIVE,
    }


def test_noisy_repeats_hide_no_change_and_invent_none(tmp_path: Path, capsys) -> None:
    make_study(tmp_path / "a", [{}], items=40, repeats=2, repeat_diverge=0.5, seed=1)
    rows = load_study([tmp_path / "a"]).complete[0].table().to_pylist()
    assert check.main([str(tmp_path / "a"), str(tmp_path / "a")]) == INCONCLUSIVE
    assert "already differ" in capsys.readouterr().out
    moved = [Row([5000 + place], [-1.0], answer="other", correct=0) for place in range(len(rows))]
    for repeat in range(2):
        write_run(tmp_path / "b", {}, moved, repeat=repeat)
    assert check.main([str(tmp_path / "a"), str(tmp_path / "b")]) == DIFFERENT


def test_failed_and_lone_runs_are_inconclusive(tmp_path: Path, capsys) -> None:
    a, b = folders(tmp_path, failed=[1])
    assert compare.main([str(a), str(b)]) == INCONCLUSIVE
    out = capsys.readouterr().out
    assert "did not complete: out of memory" in out
    assert "has no partner" in out


def test_nothing_to_match_is_a_usage_error_unless_runs_failed(tmp_path: Path, capsys) -> None:
    for name, sizes in (("a", (1, 2)), ("b", (3, 4))):
        make_study(tmp_path / name, [{"batch_size": size} for size in sizes])
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == USAGE
    assert "no run of one has the factors of the other's" in capsys.readouterr().err
    make_study(tmp_path / "c", failed=[0, 1])
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "c")]) == INCONCLUSIVE
    assert "did not complete" in capsys.readouterr().out


def test_json_and_junit(tmp_path: Path) -> None:
    a, b = folders(tmp_path, seed=3)
    files = [tmp_path / "out.json", tmp_path / "out.xml"]
    options = ["--json", str(files[0]), "--junit", str(files[1])]
    assert compare.main([str(a), str(b), *options]) == DIFFERENT
    stored = json.loads(files[0].read_text())
    assert (stored["verdict"], stored["exit_code"]) == ("DIFFERENT", 1)
    assert len(stored["pairs"]) == 4
    assert stored["items_needed"] == 29
    assert stored["pairs"][0]["examples"][0]["position"] >= 0
    suite = ElementTree.parse(files[1]).getroot()
    assert suite.attrib["tests"] == "5"
    assert int(suite.attrib["failures"]) == len(suite.findall(".//failure")) == 5
    assert check.main([str(a), str(a), *options, "--rate", "0.01"]) == INCONCLUSIVE
    suite = ElementTree.parse(files[1]).getroot()
    assert (suite.attrib["failures"], suite.attrib["skipped"]) == ("0", "1")


def test_artefacts_of_text_are_told_from_tokens(tmp_path: Path) -> None:
    rows = [Row([1, 2], [-1.0, -1.0], text="a"), Row([3], [-1.0], text="b"), Row([4], [-1.0])]
    other = [Row([1, 3], [-1.0, -1.0], text="a"), Row([3], [-1.0], text="B"), Row([4], [-1.0])]
    write_run(tmp_path / "a", {}, rows)
    write_run(tmp_path / "b", {}, other)
    runs = [load_study([tmp_path / name]).complete[0] for name in "ab"]
    found = compare_stored(*runs)
    assert (found.diverged, found.tokens_only, found.text_only) == (1, 1, 1)


def test_kl_counts_the_fork_and_is_zero_for_equal_runs(tmp_path: Path) -> None:
    def row(second: float) -> Row:
        first = float(np.log1p(-np.exp(second) - 0.1))
        return Row([1], [first], top_ids=[[1, 2]], top_logprobs=[[first, second]])

    write_run(tmp_path / "a", {}, [row(-1.0)])
    write_run(tmp_path / "b", {}, [row(-1.5)])
    a, b = (load_study([tmp_path / name]).complete[0] for name in "ab")
    assert compare_stored(a, a).kl_max == 0
    p = np.array([0.9 - np.exp(-1.0), np.exp(-1.0), 0.1])
    q = np.array([0.9 - np.exp(-1.5), np.exp(-1.5), 0.1])
    assert compare_stored(a, b).kl_mean == pytest.approx((p * np.log(p / q)).sum(), rel=1e-5)


def test_levels_count_different_things() -> None:
    rng = np.random.default_rng(3)
    side = random_side(rng)
    moved = compare_sides(side, mutate(side, "logprob", rng))
    assert [differing(moved, level) for level in ("answers", "tokens", "logprobs")] == [0, 0, 1]
    answered = compare_sides(side, mutate(side, "answer", rng))
    assert [differing(answered, level) for level in ("answers", "tokens", "logprobs")] == [1, 1, 1]
