"""The comparison of FP32 tiles in the interpreter: every variant runs, and other bits are seen."""

from __future__ import annotations

from pathlib import Path

import bench_fp32 as bench
import pytest
import timing
import torch
from nondet_kernels import attention, attention_plan, matmul, matmul_plan, mixed


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(timing, "graph_us", lambda calls, replays: float(len(calls)))
    monkeypatch.setattr(timing, "copies", lambda size, least=8, most=200: 2)
    monkeypatch.setattr(timing, "hardware", lambda: {"gpu": "none"})


def test_every_tile_runs_and_has_the_bits_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TILES", [(16, 32, 3, 4), (4, 32, 6, 2), (1, 32, 6, 1)])
    rows = list(bench.products([(40, 96)], [1, 5]))
    assert [row["bm"] for row in rows] == [16, 4, 1] * 2
    assert all(row["equal"] for row in rows)
    monkeypatch.setattr(bench, "HEADS", {"small": (6, 2, 32)})
    monkeypatch.setattr(bench, "DECODE_TILES", [(16, 1), (4, 2)])
    rows = list(bench.decode([("small", 2, 140)]))
    assert [row["bm"] for row in rows] == [16, 4]
    assert all(row["equal"] and row["equal_alone"] for row in rows)
    monkeypatch.setattr(bench, "MIXED_PLANS", bench.MIXED_PLANS[:1])
    rows = list(bench.mixtures([(64, 512)], [1, 17]))
    assert [row["spread"] for row in rows] == [1, 1, 2, 2, 4, 4, 1, 2, 4]
    assert all(row["equal"] for row in rows)


def test_another_order_of_additions_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: one tile adds up blocks of another length, so variants are not one kernel."""
    monkeypatch.setattr(bench, "TILES", [(16, 32, 3, 4), (4, 32, 6, 2)])
    usual = bench.generic

    def mutated(tile: tuple[int, int, int, int]) -> object:
        return lambda *sizes: usual(tile)(*sizes)._replace(bk=16 if tile[0] == 16 else 64)

    monkeypatch.setattr(bench, "generic", mutated)
    assert [row["equal"] for row in bench.products([(40, 512)], [1])] == [True, False]


def test_what_was_remembered_is_dropped_and_put_back() -> None:
    """Without this each variant would be the first one's kernel, as one run once was."""
    real, kept = matmul_plan.generic, attention._ready
    matmul._ready["launch"] = torch.clone
    with bench.variant(matmul_plan, generic=None):
        assert matmul_plan.generic is None
        assert not matmul._ready
        assert attention._ready is not kept
        matmul._ready["launch"] = torch.clone
    assert not matmul._ready
    assert (matmul_plan.generic, attention._ready) == (real, kept)
    assert mixed._ready is matmul._ready, "a product's launches are kept in one table"


def test_the_table_names_every_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "HEADS", {"small": (2, 1, 32)})
    monkeypatch.setattr(bench, "DECODE", [("small", 1, 3)])
    monkeypatch.setattr("sys.argv", ["bench_fp32.py", str(tmp_path / "out.csv"), "decode"])
    usual = attention_plan.shape_of
    assert bench.main() == 0
    assert attention_plan.shape_of is usual
    head, *lines = (tmp_path / "out.csv").read_text().splitlines()
    assert head == ",".join([*bench.NAMES, "gpu"])
    assert len(lines) == len(bench.DECODE_TILES)
