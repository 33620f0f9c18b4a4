"""Cost columns: from the worker into run.json, from run.json into the summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import toy
from factory import make_rows, write_run

from nondet.metrics.run_tables import COSTS, summary_table
from nondet.report.sections import short_summary
from nondet.study import load_study


def test_a_run_records_them(tiny: Path, tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 3)
    words = ["model=local", f"model.path={tiny}", "dtype=layercast", "batch_size=2", "threads=1"]
    done = toy.run(tmp_path, *words, "max_new_tokens=3", "report=false", backend="hf")
    assert done.returncode == 0, done.stderr
    record = load_study([tmp_path / "outputs" / "latest"]).runs[0].record
    assert 0 < record["first_token_s"] < record["wall_s"]
    assert record["weights_mb"] > record["cache_mb"] > 0
    assert record["observed"]["layercast"]["holes"] == 0


def test_runs_without_them_leave_their_columns_empty(tmp_path: Path) -> None:
    rows = make_rows(np.random.default_rng(0), 4, 6, None)
    write_run(tmp_path / "runs", {"batch_size": 1}, rows)
    old = summary_table(load_study([tmp_path]), None, None)
    assert old[["first_token_s", "weights_mb", "cache_mb"]].isna().all().all()
    assert "weights_mb" not in short_summary(old)
    write_run(tmp_path / "runs", {"batch_size": 2}, rows, weights_mb=270.0, first_token_s=0.02)
    both = summary_table(load_study([tmp_path]), None, None)
    assert list(both.columns[-len(COSTS) - 2 : -2]) == list(COSTS)
    assert sorted(both["weights_mb"].isna()) == [False, True]
    short = short_summary(both)
    assert {"weights_mb", "first_token_s"} <= set(short.columns)
    assert "cache_mb" not in short
