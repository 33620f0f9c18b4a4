"""One factor at a time: the comparisons pair what they say, and a changed answer shows."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from factory import Row, make_rows, write_run

from experiments.adopt import adopt
from experiments.batch_size.causes import (
    FACTORS,
    answer,
    compare,
    find,
    main,
    steps,
    tabulate,
    value_of,
)
from experiments.batch_size.study import settings
from experiments.batch_size.words import absent
from experiments.markdown import percent
from nondet.runs import write_json
from nondet.study import load_study

MACHINE = {"hardware": ["a processor"], "threads": 1, "versions": {"torch": "2.0", "triton": None}}
LARGE = 4


def _study(folder: Path, changed: dict[str, Any], how: str) -> Path:
    """The study with 6 equal answers in every run, but those of one run changed."""
    rng = np.random.default_rng(1)
    rows = make_rows(rng, 6, 12, None)
    ids = []
    for setting in settings(items=6, large=LARGE):
        own = list(rows)
        factors = setting.factors()
        if all((factors.get(k) or "dynamic") == v for k, v in changed.items()):
            own[2] = _other(rows[2], how)
        more = {name: factors[name] for name in FACTORS if name in factors}
        run = write_run(folder / "runs", more, own, repeat=setting.repeat, resolved=MACHINE)
        ids.append(run)
    write_json(folder / "study.json", {"name": "batch_size", "seed": 0, "runs": ids})
    return folder


def _other(row: Row, how: str) -> Row:
    if how == "token":
        return dataclasses.replace(row, tokens=[*row.tokens[:3], 7, *row.tokens[4:]])
    moved = np.float32(row.logprobs[1])
    logprobs = [row.logprobs[0], float(np.nextafter(moved, np.float32(1))), *row.logprobs[2:]]
    return dataclasses.replace(row, logprobs=logprobs)


def test_every_step_changes_one_factor() -> None:
    for step in steps(LARGE):
        sides = [{"batch_size": LARGE, **side} for side in (step.before, step.after)]
        base = {"cache": "dynamic", "padding": "fixed", "attention": "sdpa"}
        before, after = ({**base, **side} for side in sides)
        differ = {name for name in before if before[name] != after[name]}
        assert differ == {step.factor}, step


def test_all_steps_find_their_runs(tmp_path: Path) -> None:
    runs = load_study([_study(tmp_path, {"dtype": "none"}, "token")]).complete
    table = tabulate(runs)
    # Seven steps in two contexts, six with invariant kernels, three repeats, dtype and kernels.
    assert len(table) == 7 + 7 + 6 + 3 + 2
    assert set(table[table["factor"] == "repeat"]["context"]) == {"bf16", "fp32", "bf16, invariant"}
    assert table["diverged"].sum() == 0
    assert table["bits"].sum() == 0
    assert (table["share_high"] > 0).all()
    assert set(answer(table)["moves_bits"]) == {"no"}


CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({"cache": "none", "dtype": "bf16", "kernels": "default"}, {"cache"}),
    ({"attention": "eager", "dtype": "bf16"}, {"attention"}),
    ({"padding": "none", "dtype": "fp32"}, {"padding"}),
    ({"batch_size": 4 * LARGE, "dtype": "bf16", "kernels": "default"}, {"batch_size"}),
    ({"kernels": "invariant"}, {"kernels"}),
    ({"dtype": "fp32"}, {"dtype"}),
]


@pytest.mark.parametrize(("changed", "factors"), CASES, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("how", ["token", "bit"])
def test_a_changed_run_shows_at_its_factor_alone(
    tmp_path: Path, changed: dict[str, Any], factors: set[str], how: str
) -> None:
    table = tabulate(load_study([_study(tmp_path, changed, how)]).complete)
    found = table[table["bits"] > 0]
    assert set(found["factor"]) == factors
    assert set(found["bits"]) == {1}
    assert set(found["diverged"]) == ({1} if how == "token" else {0})
    if how == "token":
        assert set(found["first"]) == {3}
    summary = answer(table)
    moved = summary[summary["moves_bits"] == "yes"]
    assert set(moved["factor"]) == factors
    assert set(moved["moves_tokens"]) == {"yes" if how == "token" else "no"}


def test_defaults_are_filled_in(tmp_path: Path) -> None:
    runs = load_study([_study(tmp_path, {"dtype": "none"}, "bit")]).complete
    assert {value_of(run, "cache") for run in runs} == {"dynamic", "static", "none"}
    assert find(runs, cache="none", attention="eager") is None


def test_tables_and_figure_are_written(tmp_path: Path) -> None:
    study = _study(tmp_path / "study", {"dtype": "fp32"}, "token")
    main([str(tmp_path / "out"), str(study)])
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"causes.csv", "answer.csv", "causes.png", "causes.svg", "README.md"} <= names
    page = (tmp_path / "out" / "README.md").read_text()
    assert "a processor, 1 thread; torch 2.0." in page
    assert "moves nothing: KV cache, padding, batch size, attention." in page
    assert "bits and tokens: 1 of 6 answers (3 to 56 %)" in page


def test_an_error_on_a_side_is_no_answer_that_parts(tmp_path: Path) -> None:
    rows = make_rows(np.random.default_rng(0), 3, 6, None)
    failed = [Row([], [], "error", None, "error", None), *rows[1:]]
    # And a position of which an engine gave no log-probability is left out of the largest gap.
    failed[1] = dataclasses.replace(rows[1], logprobs=[float("nan"), *rows[1].logprobs[1:]])
    for batch, own in ((1, rows), (2, failed)):
        write_run(tmp_path / "runs", {"batch_size": batch}, own)
    a, b = sorted(load_study([tmp_path]).complete, key=lambda run: run.factors["batch_size"])
    found = compare(a, b)
    assert (found["items"], found["diverged"], found["logprob"]) == (2, 0, 0.0)


def test_what_a_cut_off_study_lacks_is_said(tmp_path: Path) -> None:
    study = _study(tmp_path / "study", {"dtype": "none"}, "token")
    for run in load_study([study]).complete:
        # Runs of one row take longest, and the repeats were not made.
        if run.factors["batch_size"] == 1 or run.repeat:
            shutil.rmtree(run.folder)
    main([str(tmp_path / "out"), str(study)])
    page = (tmp_path / "out" / "README.md").read_text()
    left = "padding (1 of 2 steps), batch size (1 of 2 steps), nothing (repeat)"
    assert f"Not compared, bf16: {left}." in page
    assert "agree in every bit (KV cache growing / none): chance did not move those." in page
    assert "nothing rules out" not in page
    everything = pd.read_csv(tmp_path / "out" / "causes.csv").assign(bits=1)
    assert any("nothing rules out" in line for line in absent(everything))
    assert "Control **FAILED**: bf16, number format must move bits." in page


def test_an_interval_is_0_only_where_nothing_was_seen() -> None:
    assert percent(0.0, 0.0741) == "0 to 7 %"
    assert percent(0.0028, 0.083) == "0.3 to 8 %"
    assert percent(0.93, 0.9996) == "93 to 99.96 %"
    assert percent(0.0004, 1.0) == "0.04 to 100 %"


def test_runs_made_elsewhere_are_taken_in_once_and_gaps_stay_gaps(tmp_path: Path) -> None:
    rows = make_rows(np.random.default_rng(0), 3, 6, None)
    requested = {"model": {"name": "local", "path": "/elsewhere/models/small", "revision": None}}
    runs, named = tmp_path / "a" / "runs", {"model": "local:/elsewhere/models/small"}
    done = write_run(runs, {"batch_size": 1, **named}, rows, requested=requested)
    gone = {"status": "failed", "reason": "no memory for /elsewhere/models/small-2"}
    failed = write_run(runs, {"batch_size": 2}, rows, requested=requested, **gone)
    asked = [done, failed, "never-begun"]
    write_json(tmp_path / "a" / "study.json", {"name": "a", "seed": 0, "runs": asked})
    assert adopt(tmp_path / "a", tmp_path / "b") == 1
    assert adopt(tmp_path / "a", tmp_path / "b") == 0
    study = load_study([tmp_path / "b"])
    (run,) = study.complete
    assert run.factors["model"] == "local:small"
    assert run.table().num_rows == 3
    # What failed there is no study without a gap here, and only whole folders are shortened.
    assert [one.status for one in study.runs] == ["complete", "failed"]
    assert study.runs[1].record["reason"] == "no memory for /elsewhere/models/small-2"
    assert study.missing == 1
    # It may run later.
    write_run(runs, {"batch_size": 2}, rows, requested=requested)
    assert adopt(tmp_path / "a", tmp_path / "b") == 1
    assert len(load_study([tmp_path / "b"]).complete) == 2
