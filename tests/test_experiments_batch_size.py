"""One factor at a time: the comparisons pair what they say, and a changed answer shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factory import Row, make_rows, write_run

from experiments.adopt import adopt
from experiments.batch_size.causes import FACTORS, answer, find, main, steps, tabulate, value_of
from experiments.batch_size.study import settings
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
    # Seven steps in two contexts, six with invariant kernels, a repeat, dtype and kernels.
    assert len(table) == 7 + 7 + 6 + 3
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


def test_complete_runs_made_elsewhere_are_taken_in_once(tmp_path: Path) -> None:
    rows = make_rows(np.random.default_rng(0), 3, 6, None)
    requested = {"model": {"name": "local", "path": "/elsewhere/models/small", "revision": None}}
    runs, named = tmp_path / "a" / "runs", {"model": "local:/elsewhere/models/small"}
    done = write_run(runs, {"batch_size": 1, **named}, rows, requested=requested)
    failed = write_run(runs, {"batch_size": 2}, rows, requested=requested, status="failed")
    write_json(tmp_path / "a" / "study.json", {"name": "a", "seed": 0, "runs": [done, failed]})
    assert adopt(tmp_path / "a", tmp_path / "b") == 1
    assert adopt(tmp_path / "a", tmp_path / "b") == 0
    (run,) = load_study([tmp_path / "b"]).runs
    assert run.factors["model"] == "local:small"
    assert run.table().num_rows == 3
