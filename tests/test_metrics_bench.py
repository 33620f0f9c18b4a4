"""The benchmark of the analysis: it runs, and plain pandas finds the same numbers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "experiments" / "bench" / "metrics.py"


def test_pandas_finds_the_same_numbers(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("bench_metrics", PATH)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    sys.modules["bench_metrics"] = bench
    spec.loader.exec_module(bench)
    tokens = bench.write_study(tmp_path, bench.Case("small", 4, 20, 60), seed=3)
    assert tokens > 4 * 20 * 50
    ours, theirs = bench.run_nondet(tmp_path), bench.plain_pandas(tmp_path)
    assert ours["diverged"] > 30
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        # pandas subtracts in single precision.
        assert value == pytest.approx(theirs[name], rel=1e-5), name
    # Only the numbers are compared here: tests are not timed.
    assert bench.measure(tmp_path, "nondet")["peak_mb"] > 0
