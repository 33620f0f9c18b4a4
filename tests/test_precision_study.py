"""The settings and the table of experiments.precision, without running a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from experiments.bits import first_difference
from experiments.precision.study import ARMS, BATCHES, settings
from experiments.precision.table import counts, table, words
from nondet.backends.hf import HFBackend
from nondet.csv_files import save_csv
from nondet.study import load_study

MEASURED = Path(__file__).parents[1] / "results" / "measured" / "h200" / "precision"


def test_every_setting_can_run_and_each_arm_has_all_batch_sizes() -> None:
    for graph in (False, True):
        found = settings("FOLDER", graph=graph)
        for setting in found:
            HFBackend.check(setting)
        assert len({repr(setting) for setting in found}) == len(found)
        first = [s for s in found if not s.repeat]
        if graph:
            eager = [s for s in first if not s.backend.options.get("cuda_graph")]
            assert {s.kernels for s in eager} == {"default", "invariant"}
            first = [s for s in first if s not in eager]
            found = [s for s in found if s not in eager]
        assert len(first) == len(ARMS) * len(BATCHES)
        assert {setting.batch_size for setting in first} == set(BATCHES)
        assert len(found) - len(first) == 4


@dataclass
class FakeRun:
    """What the table reads of a run."""

    factors: dict[str, Any]
    tokens: list[list[int]]
    logprobs: list[list[float]]
    repeat: int = 0
    status: str = "complete"

    def table(self, columns: list[str]) -> pa.Table:
        return pa.table({name: getattr(self, name) for name in columns})


def run(dtype: str, batch: int, tokens: list[list[int]], shift: float = 0.0, repeat: int = 0,
        ) -> FakeRun:  # fmt: skip
    factors = {"dtype": dtype, "kernels": "default", "batch_size": batch}
    return FakeRun(factors, tokens, [[-1.0 + shift for _ in row] for row in tokens], repeat)


def test_the_table_counts_items_that_part_anywhere() -> None:
    same, later, ended = [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 7]], [[1, 2], [4, 5, 6]]
    runs: Any = [
        run("bf16", 8, later),
        run("bf16", 1, same),
        run("bf16", 32, ended),
        run("fp32", 1, same),
        run("fp32", 8, same, shift=1e-7),
        run("fp32", 8, same, shift=1e-7, repeat=1),
    ]
    rows = table(runs).set_index(["compared", "dtype"])
    bf16, fp32 = rows.loc[("batch sizes", "bf16")], rows.loc[("batch sizes", "fp32")]
    assert (bf16.diverged, bf16["items"], bf16.div_percent, bf16.median_index) == (2, 2, 100, 2)
    assert (bf16.batch_sizes, bf16.as_fp32) == ("1 8 32", 2)
    assert (fp32.diverged, fp32.bits) == (0, 2)
    assert fp32.high > 50  # two items say little
    for run_ in runs:
        run_.factors["cuda_graph"] = True
    runs.append(run("fp32", 8, later))
    graphs = table(runs).set_index("compared").loc["without graphs"]
    assert (graphs.diverged, graphs.batch_sizes) == (1, "8 8")
    repeat = rows.loc[("repeat", "fp32")]
    assert (repeat.diverged, repeat.bits, repeat.batch_sizes) == (0, 0, "8 8")


def test_what_is_missing_stands_beside_what_was_compared() -> None:
    same = [[1, 2, 3], [4, 5, 6]]
    runs: Any = [run("bf16", batch, same) for batch in (1, 8, 64)]
    runs.append(replace(run("bf16", 32, []), status="failed"))
    runs.append(replace(run("bf16", 64, [], repeat=1), status="failed"))
    runs += [replace(run("fp16", 1, []), status="failed"), run("fp16", 8, same)]
    runs += [
        replace(run("fp32", 1, []), status="failed"),
        run("fp32", 8, same),
        run("fp32", 32, same),
    ]
    rows = table(runs).set_index(["compared", "dtype"])
    bf16, fp16 = rows.loc[("batch sizes", "bf16")], rows.loc[("batch sizes", "fp16")]
    assert (bf16.batch_sizes, bf16.missing, bf16.diverged) == ("1 8 64", "32", 0)
    assert pd.isna(bf16.as_fp32)  # FP32 has no run at batch size 1
    assert rows.loc[("batch sizes", "fp32")].as_fp32 == 2
    assert (fp16.batch_sizes, fp16.missing) == ("8", "1")
    assert pd.isna(fp16["items"])
    repeat = rows.loc[("repeat", "bf16")]
    assert (repeat.batch_sizes, repeat.missing) == ("64", "64")
    assert pd.isna(repeat.diverged)
    lines = words(table(runs))
    assert "| batch sizes | fp16 | default | 8; missing: 1 | not compared |  |  |  |  |  |" in lines


def test_the_committed_table_and_page_come_from_the_runs(tmp_path: Path) -> None:
    found = table(load_study([MEASURED / "study"]).runs)
    save_csv(found, tmp_path / "table.csv")
    assert (MEASURED / "study" / "table.csv").read_text() == (tmp_path / "table.csv").read_text()
    page = (MEASURED / "README.md").read_text()
    assert not [line for line in words(found) if line not in page]


def test_replayed_steps_had_no_stale_masks_in_the_committed_runs() -> None:
    """What computes in FP32 agrees over kernels, batch sizes, with and without graphs."""
    runs = load_study([MEASURED / "study"]).complete
    wide = [
        run
        for run in runs
        if run.factors["dtype"] in ("fp32", "layercast") and "kv_cache" not in run.factors
    ]
    assert {bool(run.factors.get("cuda_graph")) for run in wide} == {True, False}
    found = counts(wide, None)
    assert (found["items"], found["diverged"]) == (64, 0)
    assert found["largest_gap"] < 4e-5


def test_a_prefix_differs_at_its_end() -> None:
    assert first_difference([[1, 2], [1, 2, 3]]) == 2
    assert first_difference([[1, 2], [1, 2], [1, 3]]) == 1
    assert first_difference([[1, 2], [1, 2]]) is None
