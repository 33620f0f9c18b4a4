"""Studies put together from several folders, and studies of which a part is not there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from factory import Row, forked, make_rows, write_run

from nondet import check, compare
from nondet.analysis import analyse
from nondet.metrics.gate import INCONCLUSIVE as UNDECIDED
from nondet.metrics.gate import USAGE
from nondet.metrics.verdict import DIFFERENT, INCONCLUSIVE
from nondet.runs import write_json
from nondet.study import StudyError, load_study


def rows_of(seed: int, items: int = 30) -> list[Row]:
    return make_rows(np.random.default_rng(seed), items, 20, None)


def moved(rows: list[Row]) -> list[Row]:
    return [forked(np.random.default_rng(place), row, 2, 0.0) for place, row in enumerate(rows)]


def on(gpu: str, torch: str = "2.13.0", code: str = "a") -> dict:
    """What run.json says of the machine. The id is a hash of it, as in a real run."""
    environment = {"gpus": [gpu], "cpu": "Xeon", "versions": {"torch": torch}, "code": code}
    return {"environment": environment, "run_id": f"{gpu}-{torch}-{code}".replace(" ", "-")}


@pytest.mark.parametrize(
    ("other", "factor"),
    [
        (on("NVIDIA H200"), "machine"),
        (on("NVIDIA A100", torch="2.14.0"), "versions"),
        (on("NVIDIA A100", code="b"), "code"),
    ],
)
def test_runs_of_two_machines_are_no_repeats(tmp_path: Path, other: dict, factor: str) -> None:
    rows = rows_of(1)
    write_run(tmp_path / "one" / "runs", {}, rows, **on("NVIDIA A100"))
    write_run(tmp_path / "two" / "runs", {}, moved(rows), **other)
    study = load_study([tmp_path / "one", tmp_path / "two"])
    assert study.factors == (factor,)
    found = analyse(study)
    assert found.verdict == DIFFERENT
    assert found.pairs["kind"].tolist() == ["setting"]
    assert found.reasons[0].startswith("No setting was repeated")
    assert found.summary["label"].is_unique
    assert found.attribution.set_index("factor")["value"][factor] == 0


def test_a_real_repeat_stays_one(tmp_path: Path) -> None:
    rows = rows_of(2)
    for repeat in range(2):
        more = {**on("NVIDIA A100"), "run_id": f"run-{repeat}"}
        write_run(tmp_path / "runs", {}, rows, repeat=repeat, **more)
    study = load_study([tmp_path])
    assert study.factors == ()
    assert analyse(study).pairs["kind"].tolist() == ["repeat"]


def test_settings_on_different_machines_need_no_further_factor(tmp_path: Path) -> None:
    rows = rows_of(3)
    write_run(tmp_path / "runs", {"batch_size": 1}, rows, **on("NVIDIA A100"))
    write_run(tmp_path / "runs", {"batch_size": 4}, rows, **on("NVIDIA H200"))
    assert load_study([tmp_path]).factors == ("batch_size",)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_complete_copy_of_a_run_is_taken(tmp_path: Path, order: tuple[str, str]) -> None:
    write_run(tmp_path / "one" / "runs", {}, rows_of(4), status="failed", reason="out of memory")
    write_run(tmp_path / "two" / "runs", {}, rows_of(4))
    study = load_study([tmp_path / name for name in order])
    assert [run.status for run in study.runs] == ["complete"]


def test_runs_that_were_never_started_are_missing(tmp_path: Path, capsys) -> None:
    ids = [write_run(tmp_path / "runs", {"batch_size": size}, rows_of(5)) for size in (1, 2)]
    write_json(tmp_path / "study.json", {"name": "s", "planned": 4})
    found = analyse(load_study([tmp_path]))
    assert found.verdict == INCONCLUSIVE
    assert found.reasons[0] == "2 of 4 runs are missing."
    assert "2 runs that were asked for have no folder." in found.notes
    assert check.main([str(tmp_path)]) == UNDECIDED
    assert compare.main([str(tmp_path), str(tmp_path)]) == UNDECIDED
    assert "2 runs that were asked for have no folder in B." in capsys.readouterr().out
    write_json(tmp_path / "study.json", {"name": "s", "runs": [*ids, "lost"]})
    assert analyse(load_study([tmp_path])).reasons[0] == "1 of 3 runs are missing."
    write_json(tmp_path / "study.json", {"name": "s", "planned": 2})
    assert load_study([tmp_path]).missing == 0


def test_what_is_left_of_two_studies_is_not_matched_across_settings(tmp_path: Path, capsys) -> None:
    rows, lost = rows_of(6), {"status": "failed", "reason": "out of memory"}
    write_run(tmp_path / "a" / "runs", {"batch_size": 1}, rows)
    write_run(tmp_path / "a" / "runs", {"batch_size": 2}, rows, **lost)
    write_run(tmp_path / "b" / "runs", {"batch_size": 1}, rows, **lost)
    write_run(tmp_path / "b" / "runs", {"batch_size": 2}, moved(rows))
    file = tmp_path / "out.json"
    code = compare.main([str(tmp_path / "a"), str(tmp_path / "b"), "--json", str(file)])
    assert code == UNDECIDED
    assert json.loads(file.read_text())["pairs"] == []
    assert "has no partner" in capsys.readouterr().out


def test_characters_are_not_compared_with_tokens(tmp_path: Path) -> None:
    rows, observed = rows_of(7, 2), {"logprobs_mode": "raw_fp32"}
    write_run(tmp_path / "a" / "runs", {"batch_size": 1}, rows)
    more = {"observed": {**observed, "token_unit": "characters"}}
    write_run(tmp_path / "b" / "runs", {"batch_size": 2}, rows, **more)
    with pytest.raises(StudyError, match="token_unit: tokens against characters"):
        load_study([tmp_path / "a", tmp_path / "b"])
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == USAGE


def test_what_invariant_kernels_left_out_stands_in_the_notes(tmp_path: Path) -> None:
    observed = {"invariant": {"uncovered": ["attention with a soft cap"]}}
    for size in (1, 2):
        write_run(
            tmp_path / "runs", {"batch_size": size, "kernels": "invariant"}, rows_of(4),
            observed=observed,
        )  # fmt: skip
    notes = " ".join(analyse(load_study([tmp_path])).notes)
    assert notes.count("kernels=invariant left out attention with a soft cap.") == 2
