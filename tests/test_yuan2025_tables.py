"""Tables of a synthetic mini study against other ways to the same numbers."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.yuan2025 import claims, ordering, pack
from experiments.yuan2025.matrix import Scale, load_scale
from experiments.yuan2025.numbers import workloads
from experiments.yuan2025.page import all_tables, write_report
from experiments.yuan2025.results import load_results
from experiments.yuan2025.tables import Tables
from nondet.runs import read_run
from tests import yuan_study

ROOT = Path(__file__).parent.parent
COMMITTED = sorted((ROOT / "results" / "measured").glob("*/yuan2025"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scale, Path]:
    folder = tmp_path_factory.mktemp("mini")
    return yuan_study.make(folder), folder


@pytest.fixture(scope="module")
def named(study: tuple[Scale, Path]) -> dict[str, pd.DataFrame]:
    scale, folder = study
    results = load_results(scale, folder)
    return all_tables(Tables(scale, results, workloads(results), {"x | y": "z"}))


def texts(folder: Path, scale: Scale, task: str, dtype: str) -> list[list[list[int]]]:
    """Tokens of each batch size of one task and dtype, read by hand."""
    said = json.loads((folder / "cells.json").read_text())["cells"]
    found = []
    for cell in scale.cells:
        asked = (cell.task, cell.asked("dtype", ""), cell.asked("repeat", 0))
        if asked == (task, dtype, 0) and "run" in said[cell.name]:
            found.append(read_run(folder / "runs" / said[cell.name]["run"]).table())
    return [table["tokens"].to_pylist() for table in found]


def ours(table: pd.DataFrame, **where: object) -> pd.Series:
    chosen = table[np.all([table[key] == value for key, value in where.items()], axis=0)]
    assert len(chosen) == 1, chosen
    return chosen.iloc[0]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "layercast"])
@pytest.mark.parametrize("task", ["recall", "chain_sum"])
def test_numbers_by_hand(
    study: tuple[Scale, Path], named: dict[str, pd.DataFrame], task: str, dtype: str
) -> None:
    scale, folder = study
    tokens = texts(folder, scale, task, dtype)
    assert len(tokens) == 3
    items = list(zip(*tokens, strict=True))
    lengths = statistics.mean(statistics.stdev(map(len, item)) for item in items)
    where = {"model": "SmolLM2-135M-Instruct", "task": task, "dtype": dtype}
    row = ours(named["tables_4_7"], **where)
    assert row["ours"] == pytest.approx(lengths)
    assert (row["settings"], row["items"]) == (3, yuan_study.ITEMS)
    first = [
        next((at for at, three in enumerate(zip(*item, strict=False)) if len(set(three)) > 1), None)
        for item in items
    ]
    parted = [at for at in first if at is not None]
    share = ours(named["table_9"], **where)
    assert share["ours"] == pytest.approx(100 * len(parted) / len(items))
    assert share["low"] <= share["ours"] <= share["high"]
    assert share["high"] > share["low"]
    index = ours(named["table_8"], **where)["ours"]
    assert index == pytest.approx(statistics.mean(parted) if parted else -1)


def test_spread_of_accuracy_is_that_of_the_levels(named: dict[str, pd.DataFrame]) -> None:
    own = named["table_25"]
    own = own[own["model"] == "SmolLM2-135M-Instruct"]
    for (task, dtype), part in own.groupby(["task", "dtype"]):
        spread = part[part["setting"].str.startswith("std over")]
        levels = part[~part["setting"].str.startswith("std over")]["ours"]
        assert len(levels) == 3
        assert spread["ours"].item() == pytest.approx(statistics.stdev(levels))
        where = {"model": "SmolLM2-135M-Instruct", "task": task, "dtype": dtype}
        assert ours(named["tables_3_6"], **where)["ours"] == pytest.approx(spread["ours"].item())


def test_every_published_cell_is_there_with_a_number_or_a_reason(
    named: dict[str, pd.DataFrame],
) -> None:
    counts = {"tables_3_6": 60, "tables_4_7": 60, "table_8": 60, "table_9": 60, "table_16": 80}
    counts |= {"table_5": 36, "table_12": 4, "table_15": 60}
    for name, count in counts.items():
        table = named[name]
        assert table["published"].notna().sum() == count, name
        without = table[table["ours"].isna()]
        assert (without["note"] != "").all(), name
    levels = {"table_10": 21, "table_11": 24, "tables_21_24": 18, "table_25": 90, "table_26": 36}
    for name, count in levels.items():
        printed = named[name][named[name]["published"].notna()]
        assert (~printed["setting"].str.startswith("std over")).sum() == count, name


def test_missing_cells_carry_their_reason(named: dict[str, pd.DataFrame]) -> None:
    rows = named["table_5"]
    own = rows[rows["model"] == "SmolLM2-135M-Instruct"]
    assert len(own) == 2
    assert own["note"].str.contains("left out by the test").all()
    assert (named["cells"]["note"] != "").sum() == 6


def test_repeats_are_controls_and_never_settings(named: dict[str, pd.DataFrame]) -> None:
    assert len(named["controls"]) == 3
    assert (named["controls"]["parted"] == 0).all()
    assert (named["controls"]["high"] > 0).all()
    assert (named["tables_3_6"]["settings"].dropna() == 3).all()


def test_the_ordering_is_read_from_the_runs(tmp_path: Path) -> None:
    def found(leave: dict[str, float]) -> pd.DataFrame:
        folder = tmp_path / "-".join(f"{value:g}" for value in leave.values())
        scale = yuan_study.make(folder, leave)
        return ordering.ordering(workloads(load_results(scale, folder)))

    # Mutation: turn the formats round, and the verdict must turn.
    straight = found({"bf16": 1.0, "fp16": 0.0, "fp32": 0.0, "layercast": 0.0})
    turned = found({"bf16": 0.0, "fp16": 0.0, "fp32": 1.0, "layercast": 0.0})
    claim = "bf16 parts more than fp32"
    for table, says in ((straight, claims.HOLDS), (turned, claims.REVERSED)):
        rows = table[table["claim"] == claim]
        assert len(rows) == 2
        assert (rows["says"] == says).all()
        assert (rows["low"] <= rows["difference"]).all()
        assert (rows["difference"] <= rows["high"]).all()
    assert claims.verdict(turned) == "DOES NOT HOLD"
    same = straight[straight["claim"] == "fp16 parts more than fp32"]
    assert (same["says"] == claims.SAME).all()
    assert (same["high"] > 0).all()
    words = claims.sentences(straight)
    # One GPU: what is not compared is said, and no verdict rests on the rest.
    assert words[-1].endswith("on a side: smaller batches vary more, more GPUs vary more.")
    assert claims.verdict(straight) == "NOT DECIDED"
    assert words[2].startswith("BF16 parts more than FP32: holds in 2 of 2 comparisons")


def test_nothing_finished_is_no_verdict(tmp_path: Path) -> None:
    from experiments.yuan2025.results import save_results

    scale = load_scale("mini")
    save_results(scale, tmp_path, {})
    written = write_report(scale, tmp_path, tmp_path / "report")
    assert "NOT DECIDED" in written.text
    assert "33 runs missing: not run yet" in written.text


def test_the_report_is_whole_and_the_same_twice(study: tuple[Scale, Path]) -> None:
    scale, folder = study
    write_report(scale, folder, folder / "one")
    write_report(scale, folder, folder / "two")
    names = sorted(p.relative_to(folder / "one") for p in (folder / "one").rglob("*.*"))
    assert len([n for n in names if n.suffix == ".csv" and n.parent.name == "tables"]) >= 23
    for name in names:
        if name.suffix in (".csv", ".md", ".html"):
            assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()
    page = (folder / "one" / "index.html").read_text()
    for part in ('id="tables_3_6"', 'id="departures"', 'id="figures"', 'id="cells"'):
        assert part in page
    for name in ("figure_4", "figure_5", "figure_8", "figures_1_9"):
        assert (folder / "one" / "figures" / f"{name}.svg").exists()


def test_a_run_that_is_not_what_its_cell_says_is_refused(study: tuple[Scale, Path]) -> None:
    scale, folder = study
    path = folder / "cells.json"
    whole = path.read_text()
    said = json.loads(whole)
    names = list(said["cells"])
    said["cells"][names[0]], said["cells"][names[1]] = (
        said["cells"][names[1]],
        said["cells"][names[0]],
    )
    path.write_text(json.dumps(said))
    try:
        with pytest.raises(ValueError, match="asks for another"):
            load_results(scale, folder)
    finally:
        path.write_text(whole)


def test_packing_touches_no_token_and_no_logprob(tmp_path: Path) -> None:
    scale = yuan_study.make(tmp_path)
    before = {p.name: read_run(p).table() for p in (tmp_path / "runs").iterdir()}
    write_report(scale, tmp_path, tmp_path / "before")
    stray = next((tmp_path / "runs").iterdir())
    shutil.copytree(stray, tmp_path / "runs" / "stray")
    pack.main([str(tmp_path)])
    assert not (tmp_path / "runs" / "stray").exists()
    for path in (tmp_path / "runs").iterdir():
        after, run = read_run(path).table(), read_run(path)
        assert run.top_k == 2
        for name in after.schema.names:
            if not name.startswith("top_"):
                assert after[name] == before[path.name][name], name
        for row, whole in zip(
            after["top_ids"].to_pylist(), before[path.name]["top_ids"].to_pylist(), strict=True
        ):
            assert row == [value for at, value in enumerate(whole) if at % 5 < 2]
    write_report(scale, tmp_path, tmp_path / "after")
    for path in (tmp_path / "before" / "tables").glob("*.csv"):
        assert path.read_text() == (tmp_path / "after" / "tables" / path.name).read_text()


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_tables_recompute_to_the_last_digit(folder: Path, tmp_path: Path) -> None:
    scale = load_scale(json.loads((folder / "cells.json").read_text())["scale"])
    results = load_results(scale, folder)
    assert any(result.run for result in results), f"{folder}: no run in it"
    write_report(scale, folder, tmp_path)
    committed = sorted((folder / "report" / "tables").glob("*.csv"))
    assert len(committed) >= 20
    for path in committed:
        assert (tmp_path / "tables" / path.name).read_text() == path.read_text(), path.name
