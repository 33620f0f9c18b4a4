"""The floating-point demonstrations: what they count is right, and a changed kernel shows."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.floating_point import batches, figures, split, sums
from experiments.floating_point.operations import Operation, Sizes, operations

SMALL = Sizes(((32, 48),), 32, 4, 2, 16, 64, 8, 4, 512)


def line_floor(rows: list[dict[str, object]]) -> float:
    """The error of float64 rounded once."""
    return float(str(rows[0]["floor"]))


def test_sums_of_all_orders_are_those_of_pythons_floats() -> None:
    every = np.array(list(permutations(range(8))))
    values = torch.tensor(sums.EIGHT, dtype=torch.float64)
    ours = sums.sequential(values, every)
    mine = {float(np.add.accumulate(np.array(sums.EIGHT)[order])[-1]) + 0.0 for order in every}
    assert sums.distinct(ours) == len(mine) > 100
    assert math.fsum(sums.EIGHT) == 0


def test_pieces_add_up_to_the_same_number_in_another_order() -> None:
    values = torch.arange(1, 101, dtype=torch.float64)
    assert {float(sums.in_pieces(values, n)) for n in (1, 2, 4, 8)} == {5050.0}
    fine = torch.randn(1000, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    found = torch.cat([sums.in_pieces(fine, 2**n) for n in range(6)])
    assert sums.distinct(found) > 1
    assert float((found.double() - math.fsum(fine.double().tolist())).abs().max()) < 1e-3


def test_the_cuts_of_the_example() -> None:
    assert len(split.cuts(128)) == 4
    assert split.cuts(80, 48) == [(0, 32), (32, 64), (64, 80), (80, 112), (112, 128)]


def test_blocks_are_attention_whatever_the_cuts() -> None:
    table = pd.DataFrame(split.rows(SMALL, "cpu")).set_index(["way", "dtype"])
    fp32 = table.xs("fp32", level="dtype")
    assert (fp32["error_whole"] < 1e-6).all()
    assert (fp32["error_split"] < 1e-6).all()
    # Other cuts, other bits; cuts at fixed places and our operation, the same bits.
    assert fp32.loc["by hand, 4 blocks / 3 + 2", "differing"] > 0
    for way in ("by hand, fixed cuts", "ours"):
        assert (table.loc[way, "differing"] == 0).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_every_operation_answers_its_question(dtype: str) -> None:
    kind = batches.DTYPES[dtype]
    for operation in operations(SMALL, kind, "cpu"):
        rows = [
            line
            for kernels in batches.KERNELS
            for line in batches.measure(operation, dtype, kernels, SMALL.batches, "cpu")
        ]
        assert not any(line["reason"] for line in rows), rows
        assert all(line["again"] == 0 for line in rows)
        assert all(line["differing"] == 0 for line in rows if line["kernels"] == "invariant")
        # As near to float64 as the dtype allows, give or take its few roundings.
        worst = 4 * line_floor(rows) + (1e-2 if operation.name.startswith("sum") else 1e-5)
        assert all(line["error"] < worst for line in rows), operation.name


def test_a_row_that_follows_the_batch_is_seen() -> None:
    good = operations(SMALL, torch.float32, "cpu")[0]

    def moved(size: int, invariant: bool) -> torch.Tensor:
        row = good.row(1, invariant).clone()
        if size == 8:
            row[3] = torch.nextafter(row[3], torch.tensor(math.inf))
        return row

    bad = Operation("bad", "", "", 8, moved, good.exact)
    found = batches.measure(bad, "fp32", "default", SMALL.batches, "cpu")
    assert [line["differing"] for line in found] == [0, 0, 0, 0, 1]
    calls = iter(range(100))

    def rarely(size: int, invariant: bool) -> torch.Tensor:
        return good.row(1, invariant) + (next(calls) == 4)

    noisy = Operation("noisy", "", "", 2, rarely, good.exact)
    found = batches.measure(noisy, "fp32", "default", [1, 2], "cpu")
    assert [line["again"] for line in found] == [0, 1]


def test_an_operation_that_fails_has_its_reason() -> None:
    def fails(size: int, invariant: bool) -> torch.Tensor:
        raise RuntimeError("no such kernel\nmore")

    good = operations(SMALL, torch.float32, "cpu")[0]
    found = batches.measure(Operation("x", "", "", 2, fails, good.exact), "fp32", "default",
                            [1, 2], "cpu")  # fmt: skip
    assert {line["reason"] for line in found} == {"RuntimeError: no such kernel"}


def test_a_row_that_did_not_run_alone_is_compared_with_nothing() -> None:
    good = operations(SMALL, torch.float32, "cpu")[0]

    def row(size: int, invariant: bool) -> torch.Tensor:
        if size == 1:
            raise RuntimeError("no such kernel")
        return good.row(1, invariant)

    found = batches.measure(Operation("x", "", "", 2, row, good.exact), "fp32", "default",
                            [1, 2], "cpu")  # fmt: skip
    assert ["differing" in line for line in found] == [False, False]
    assert "did not run alone" in found[1]["reason"]


def test_figures_are_drawn_from_the_tables_alone(tmp_path: Path) -> None:
    lines = [
        line
        for name, dtype in batches.DTYPES.items()
        for operation in operations(SMALL, dtype, "cpu")
        for kernels in batches.KERNELS
        for line in batches.measure(operation, name, kernels, SMALL.batches, "cpu")
    ]
    pd.DataFrame(lines).to_csv(tmp_path / "batches.csv", index=False)
    pd.DataFrame(sums.rows("cpu", 16, 8)).to_csv(tmp_path / "sums.csv", index=False)
    pd.DataFrame(split.rows(SMALL, "cpu")).to_csv(tmp_path / "split.csv", index=False)
    figures.draw(tmp_path)
    names = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert names == {"sums", "product", "grid", "accuracy", "split"}
