"""What cannot be told is not counted, and no claim is compared that differs in something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.yuan2025 import claims, figures, launch, ordering
from experiments.yuan2025.departures import confounders
from experiments.yuan2025.forks import candidates
from experiments.yuan2025.matrix import Cell, Scale, load_scale
from experiments.yuan2025.numbers import workloads
from experiments.yuan2025.page import controls
from experiments.yuan2025.results import from_studies, load_results, save_results
from experiments.yuan2025.tables import Tables, specs
from nondet.report.style import house
from nondet.study import load_study
from nondet.sweep import setting_of
from tests import yuan_study
from tests.factory import Row, forked, make_rows, write_run

ITEMS = 16
Change = Callable[[Cell, list[Row]], list[Row]]


def study(
    folder: Path,
    change: Change = lambda _, rows: rows,
    unlike: Callable[[Cell], dict[str, Any]] = lambda _: {},
    missing: Callable[[Cell], bool] = lambda _: False,
) -> tuple[Scale, pd.DataFrame]:
    """Scale mini where all runs of a task answer the same but for ``change``; its ordering."""
    scale = load_scale("mini")
    said: dict[str, dict[str, Any]] = {}
    for cell in scale.cells:
        if cell.arm == "sampling" or missing(cell):
            said[cell.name] = {"reason": "left out"}
            continue
        rows = change(cell, make_rows(np.random.default_rng(3), ITEMS, 20, 32))
        factors = {**yuan_study.factors(cell), "backend": "hf", **unlike(cell)}
        name = write_run(folder / "runs", factors, rows, **yuan_study.facts(cell))
        said[cell.name] = {"run": name}
    save_results(scale, folder, said)
    return scale, ordering.ordering(workloads(load_results(scale, folder)))


def failing(rows: list[Row]) -> list[Row]:
    """The same with an error in place of the first answer."""
    return [Row([], [], "error", None, "error", None), *rows[1:]]


def test_an_error_is_no_item_that_stays_the_same(tmp_path: Path) -> None:
    def one(cell: Cell, rows: list[Row]) -> list[Row]:
        there = cell.values == {"dtype": "bf16", "batch_size": 8}
        return failing(rows) if there and cell.task == "recall" else rows

    _, table = study(tmp_path, one)
    bf16 = table[table["more"].eq("bf16") & table["task"].eq("recall")]
    assert len(bf16) == 2
    assert (bf16["items"] == ITEMS - 1).all()
    assert (bf16["says"] == claims.SAME).all()


@pytest.mark.parametrize(("items", "expected"), [(5, claims.OPEN), (6, claims.HOLDS)])
def test_few_items_that_part_are_judged_by_the_exact_test(
    tmp_path: Path, items: int, expected: str
) -> None:
    """Five of five on one side have p = 0.0625, though resampling never reaches a share of 0."""

    def parted(cell: Cell, rows: list[Row]) -> list[Row]:
        if cell.values != {"dtype": "bf16", "batch_size": 8}:
            return rows
        rng = np.random.default_rng(5)
        return [forked(rng, row, 1, 0.0) for row in rows[:items]] + rows[items:]

    _, table = study(tmp_path, parted)
    row = table[table["claim"].eq("bf16 parts more than fp32")].iloc[0]
    assert row["low"] > 0
    assert row["p"] == pytest.approx(2 * 0.5**items)
    assert row["says"] == expected


def test_steps_of_another_length_are_another_setting(tmp_path: Path) -> None:
    _, table = study(
        tmp_path,
        unlike=lambda cell: {"chunk_tokens": 64 if cell.asked("dtype", "") == "fp32" else 32},
    )
    assert "bf16 parts more than fp16" in set(table["claim"])
    assert "bf16 parts more than fp32" not in set(table["claim"])


def test_figures_leave_out_what_is_not_known(tmp_path: Path) -> None:
    def lost(cell: Cell, rows: list[Row]) -> list[Row]:
        return failing(rows) if cell.values.get("dtype") == "fp32" else rows

    scale, _ = study(tmp_path, lost)
    results = load_results(scale, tmp_path)
    tables = Tables(scale, results, workloads(results))
    with house():
        parted, gaps = (figures.make(name, tables) for name in ("figure_5", "figure_3_right"))
    counts = parted.table.groupby(["task", "group"])["items"].sum()
    assert counts["recall", "fp32"] == ITEMS - 1
    assert counts["recall", "bf16"] == ITEMS
    assert set(gaps.table["items"]) == {ITEMS - 1}


def test_an_error_in_a_repeat_is_no_control_that_held(tmp_path: Path) -> None:
    def one(cell: Cell, rows: list[Row]) -> list[Row]:
        return failing(rows) if cell.arm == "controls" else rows

    scale, _ = study(tmp_path, one)
    found = controls(workloads(load_results(scale, tmp_path)))
    assert len(found) == 3
    assert (found["items"] == ITEMS - 1).all()
    assert (found["parted"] == 0).all()


def test_a_repeat_is_held_against_its_own_machine(tmp_path: Path) -> None:
    """Two GPU types that differ in every answer, each of which repeats itself."""
    scale = load_scale("full")
    named = {"model": "Qwen2.5-7B-Instruct", "task": "aime24"}
    kept = [
        cell
        for cell in scale.cells
        if cell.arm in ("greedy", "controls")
        and (cell.model, cell.task) == tuple(named.values())
        and cell.values == {"dtype": "bf16", "gpus": 2, "batch_size": 8}
    ]
    assert len(kept) == 4
    said = {}
    for cell in kept:
        rng = np.random.default_rng(0)
        rows = make_rows(rng, ITEMS, 20, None)
        if cell.hardware == "L40S":
            rows = [forked(rng, row, 0, 0.0) for row in rows]
        repeat = int(cell.asked("repeat", 0))
        more = {"repeat": repeat, "run_id": f"{cell.hardware}-{repeat}"}
        said[cell.name] = {
            "run": write_run(tmp_path / "runs", {**cell.values, **named}, rows, **more)
        }
    save_results(scale, tmp_path, said)
    found = controls(workloads(load_results(scale, tmp_path)))
    assert found["parted"].tolist() == [0, 0]


def test_layercast_on_another_engine_says_so(tmp_path: Path) -> None:
    def engines(cell: Cell) -> dict[str, Any]:
        return {} if cell.asked("dtype", "") == "layercast" else {"backend": "vllm"}

    _, table = study(tmp_path, unlike=engines)
    like = table[table["claim"] == claims.LIKE]
    assert list(like["more"]) == ["fp32 (vllm)"] * 2
    assert list(like["less"]) == ["layercast (hf)"] * 2
    assert any("the engines differ, too" in words for words in claims.sentences(table))


def test_two_engines_are_never_one_spread(tmp_path: Path) -> None:
    """Engines that differ in every answer: within each of them nothing parts."""

    def engines(cell: Cell) -> dict[str, Any]:
        return {"backend": "vllm"} if cell.values.get("dtype") == "fp16" else {}

    def other(cell: Cell, rows: list[Row]) -> list[Row]:
        rng = np.random.default_rng(4)
        if cell.values.get("dtype") != "fp16":
            return rows
        return [forked(rng, row, 0, 0.0) for row in rows]

    _, table = study(tmp_path, other, engines)
    # FP16 ran on an engine of its own: nothing to compare it with.
    assert not (table["more"] == "fp16").any()
    assert not (table["less"] == "fp16").any()
    assert (table["more_value"].dropna() == 0).all()


def kernels_at_two_sizes(**values: Any) -> list[Any]:
    """Default at 1 and 8, then invariant at 1 and 8."""
    return [
        SimpleNamespace(
            cell=SimpleNamespace(hardware="this machine"),
            run=SimpleNamespace(
                repeat=0,
                factors={"dtype": "bf16", "kernels": kernels, "batch_size": size, **values},
            ),
        )
        for kernels in ("default", "invariant")
        for size in (1, 8)
    ]


def kernel_rows(monkeypatch: pytest.MonkeyPatch, results: list[Any]) -> list[dict[str, Any]]:
    """What is compared with what, by the place of the runs."""
    monkeypatch.setattr(
        ordering, "_divergence", lambda _, __, *found: dict(zip("mlab", found, strict=True))
    )
    workload: Any = SimpleNamespace(results=results)
    return ordering._kernels(workload)


def test_kernels_with_steps_of_two_lengths_are_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (
        kernels_at_two_sizes(backend="vllm", chunk_tokens=tokens) for tokens in (8192, 16384)
    )
    rows = kernel_rows(monkeypatch, [*short, *long])
    assert [(row["m"], row["a"], row["b"]) for row in rows] == [
        ("default, steps of 8192 tokens", [0, 1], [2, 3]),
        ("default, steps of 16384 tokens", [4, 5], [6, 7]),
    ]
    # Without the mode at the other length there is one row, and nothing to tell apart.
    rows = kernel_rows(monkeypatch, [*short, *long[:2]])
    assert [(row["m"], row["a"], row["b"]) for row in rows] == [("default", [0, 1], [2, 3])]


def test_kernels_on_two_engines_are_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [*kernels_at_two_sizes(backend="hf"), *kernels_at_two_sizes(backend="vllm")]
    assert kernel_rows(monkeypatch, results) == [
        {"m": "default (hf)", "l": "invariant (hf)", "a": [0, 1], "b": [2, 3], "dtype": "bf16"},
        {"m": "default (vllm)", "l": "invariant (vllm)", "a": [4, 5], "b": [6, 7], "dtype": "bf16"},
    ]


def test_layercast_on_two_engines_is_no_spread(tmp_path: Path) -> None:
    sizes = sorted({cell.values["batch_size"] for cell in load_scale("mini").cells})

    def away(cell: Cell) -> bool:
        return cell.values.get("dtype") == "layercast" and cell.values["batch_size"] == sizes[-1]

    def other(cell: Cell, rows: list[Row]) -> list[Row]:
        rng = np.random.default_rng(4)
        return [forked(rng, row, 0, 0.0) for row in rows] if away(cell) else rows

    _, table = study(tmp_path, other, lambda cell: {"backend": "vllm"} if away(cell) else {})
    like = table[table["claim"] == claims.LIKE]
    assert (like["less_value"] == 0).all()


def test_every_greedy_arm_of_the_paper_is_compared() -> None:
    roles = {role for cell in load_scale("full").cells for role in cell.roles}
    assert roles - ordering.GREEDY == {"sampling", "repeats"}


@pytest.mark.parametrize("difference", [1.0, -1.0, 0.0])
def test_where_all_items_agree_the_bound_leaves_room_on_both_sides(difference: float) -> None:
    row = {"items": ITEMS, "difference": difference, "low": np.nan, "high": np.nan}
    found = ordering._exact_where_alike(row)
    # Of so many items none may show what a share of 0.05 ** (1 / n) less than all would do.
    unseen = 1 - 0.05 ** (1 / ITEMS)
    assert found["low"] == pytest.approx(max(-1.0, difference - (1 + abs(difference)) * unseen))
    assert found["high"] == pytest.approx(min(1.0, difference + (1 + abs(difference)) * unseen))


def test_no_difference_anywhere_comes_before_the_missing_interval() -> None:
    assert claims.says(ITEMS, np.nan, np.nan, True) == claims.SAME
    assert claims.says(ITEMS, np.nan, np.nan, False) == claims.OPEN
    assert claims.says(0, np.nan, np.nan, False) == claims.OPEN


def test_a_row_over_some_of_its_settings_says_what_is_missing(tmp_path: Path) -> None:
    def left(cell: Cell) -> bool:
        return cell.values == {"dtype": "bf16", "batch_size": 8}

    scale, _ = study(tmp_path, missing=left)
    results = load_results(scale, tmp_path)
    tables = Tables(scale, results, workloads(results))
    rows = tables.estimate_rows("table_9", specs("tables")["table_9"])
    notes = {(row["task"], row["dtype"]): row["note"] for row in rows}
    assert notes["recall", "bf16"] == "2 of 3 settings: left out (1)"
    assert notes["recall", "fp32"] == ""


def test_the_spread_of_samples_counts_items(tmp_path: Path) -> None:
    """Equal accuracies: the upper end is what unseen items could add, not unseen samples."""
    scale = load_scale("mini")
    said = {}
    for cell in (cell for cell in scale.cells if cell.arm == "sampling"):
        rows = make_rows(np.random.default_rng(5), 8 * cell.samples, 10, 16)
        factors = {**yuan_study.factors(cell), "samples": cell.samples}
        facts = yuan_study.facts(cell)
        name = write_run(tmp_path / "runs", factors, rows, samples=cell.samples, **facts)
        said[cell.name] = {"run": name}
    save_results(scale, tmp_path, said)
    results = load_results(scale, tmp_path)
    tables = Tables(scale, results, workloads(results))
    five, levels = tables.make("table_5"), tables.make("tables_21_24")
    own = five[five["ours"].notna()]
    spread = levels[levels["setting"].str.startswith("std over") & levels["ours"].notna()]
    assert len(own) == len(spread) == 2
    assert (own["high"] > 0).all()
    assert list(spread["high"]) == list(own["high"])


def test_a_later_failure_does_not_hide_a_complete_run(tmp_path: Path) -> None:
    scale = load_scale("mini")
    cell = scale.cells[0]
    rows = make_rows(np.random.default_rng(0), 2, 5, None)
    factors = yuan_study.factors(cell)
    done = write_run(tmp_path / "runs", factors, rows, ended="2026-01-01", task_fingerprint="a")
    facts = {"status": "failed", "reason": "killed", "ended": "2026-01-02"}
    write_run(tmp_path / "runs", factors, rows, task_fingerprint="b", **facts)
    assert from_studies(scale, {cell.study: tmp_path})[cell.name] == {"run": done}


def test_cells_are_composed_once_a_study_and_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of ``make reproduce-paper`` waits for little else."""
    scale, words = load_scale("mini"), ["threads=1"]
    compose, composed = launch.compose, []

    def counting(name: str, overrides: list[str]) -> Any:
        composed.append(overrides)
        return compose(name, overrides)

    monkeypatch.setattr(launch, "compose", counting)
    monkeypatch.setattr(launch, "plan_run", lambda setting: setting)
    found = launch.plan_cells(scale, words)
    assert len(composed) == len({(cell.sweep, cell.fixed) for cell in scale.cells})
    with launch.initialize_config_dir(str(launch.data_folder("configs")), version_base="1.3"):
        for cell in scale.cells[::4]:
            assert found[cell.name] == setting_of(compose("config", [*words, *cell.words]))


def test_weights_that_layercast_stores_in_16_bits_are_not_called_fp32(tmp_path: Path) -> None:
    stored = {"stored_parameters": {"bfloat16": 7, "float32": 1}}
    for dtype, observed in (("fp32", {}), ("layercast", {"layercast": stored})):
        told = {"dtype": "float32", **observed}
        write_run(tmp_path, {"dtype": dtype}, make_rows(np.random.default_rng(1), 2, 4, 8),
                  observed=told)  # fmt: skip
    table = confounders(load_study([tmp_path]).complete).set_index("what")
    assert table.loc["dtype of the weights", "ours, FP32 and LayerCast"] in (
        "float32 or bfloat16, float32",
        "bfloat16, float32 or float32",
    )


def test_a_fork_without_candidates_is_said_in_words(tmp_path: Path) -> None:
    def ended(cell: Cell, rows: list[Row]) -> list[Row]:
        if cell.values["batch_size"] == 4:
            return rows
        rng = np.random.default_rng(4)
        return [forked(rng, row, 0, 0.0) for row in rows]

    scale, _ = study(tmp_path, ended)
    results = load_results(scale, tmp_path)
    spec = {"title": "one fork"}
    (workload, *_) = workloads(results)
    bare = [
        replace(run, record={**run.record, "factors": {**run.record["factors"], "top_k": 0}})
        for run in workload.loaded.runs
    ]
    without = replace(workload, loaded=replace(workload.loaded, runs=tuple(bare)))
    with house():
        panel = candidates("fork", spec, [(without, list(range(len(bare))))])
    assert panel.words.startswith("No candidates were kept where item")
