"""Studies on machines without Hydra and without an installed nondet."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from experiments import together
from nondet.settings import setting_from
from nondet.study import load_study


def test_a_checkout_that_is_not_installed_knows_its_backends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "entry_points", lambda group: ())
    monkeypatch.setattr(sys, "path", list(sys.path))
    together.announce()
    (found,) = distributions(path=[sys.path[-1]])
    named = {entry.name: entry for entry in found.entry_points}
    assert {"hf", "vllm", "sglang", "openai"} <= set(named)
    assert named["hf"].load().name == "hf"


@pytest.mark.slow
def test_studies_run_resume_and_count_what_fails(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {
        "model": {"name": "local", "path": str(tiny)},
        "task": {"name": "completions", "copies": 3},
        "batching": "varied",
        "batch_size": 2,
        "max_new_tokens": 2,
        "dtype": "fp32",
        "threads": 1,
    }
    good = setting_from(base)
    late = setting_from({**base, "timeout_s": 0.01, "seed": 1})
    bad = setting_from({**base, "gpus": 9})
    studies = {tmp_path / "one": [good], tmp_path / "two": [late, bad]}
    assert together.run_all(studies, "test", 2) == 2
    said = capsys.readouterr().out
    assert "cannot run, gpus=9" in said
    assert "time limit" in said
    (run,) = load_study([tmp_path / "one"]).complete
    assert run.table().num_rows == 3
    assert len(json.loads((tmp_path / "two" / "study.json").read_text())["runs"]) == 1
    assert together.run_all({tmp_path / "one": [good]}, "test") == 0
    assert "skipped" in capsys.readouterr().out
