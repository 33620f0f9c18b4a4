"""Committed pages of the experiments after the posts: their numbers are those of the runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.batch_size import causes
from experiments.batch_size import words as batch_size
from experiments.floating_point import words as floating_point
from experiments.tml2025 import completions
from experiments.tml2025 import words as tml2025
from nondet.csv_files import save_csv
from nondet.study import load_study

MEASURED = Path(__file__).parents[1] / "results" / "measured"
PAGES = {"batch_size": batch_size.page, "floating_point": floating_point.page,
         "tml2025": tml2025.page}  # fmt: skip
FOLDERS = [
    folder for name in PAGES for folder in sorted(MEASURED.glob(f"*/{name}")) if folder.is_dir()
]


def named(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"


def saved(table: pd.DataFrame, folder: Path) -> str:
    """The table as the experiments write it."""
    save_csv(table, folder / "table.csv")
    return (folder / "table.csv").read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_the_page_is_made_from_its_tables(folder: Path) -> None:
    assert (folder / "README.md").read_text() == PAGES[folder.name](folder)


@pytest.mark.parametrize("folder", [f for f in FOLDERS if f.name == "batch_size"], ids=named)
def test_causes_come_from_the_runs(folder: Path, tmp_path: Path) -> None:
    table = causes.tabulate(load_study([folder]).complete)
    assert (folder / "causes.csv").read_text() == saved(table, tmp_path)
    assert (folder / "answer.csv").read_text() == saved(causes.answer(table), tmp_path)


@pytest.mark.parametrize("folder", [f for f in FOLDERS if f.name == "tml2025"], ids=named)
def test_completions_come_from_the_runs(folder: Path, tmp_path: Path) -> None:
    kept = pd.read_csv(folder / "completions.csv")
    # Engines other than transformers have folders of their own.
    names = list(dict.fromkeys(zip(kept["backend"], kept["study"], strict=True)))
    folders = [folder / ("" if engine == "hf" else engine) / study for engine, study in names]
    table, parts = completions.tabulate(folders)
    assert (folder / "completions.csv").read_text() == saved(table, tmp_path)
    assert (folder / "parts.csv").read_text() == saved(parts, tmp_path)
    again = pd.read_csv(folder / "completions.csv")
    assert (again["unique"] <= again["completions"]).all()
