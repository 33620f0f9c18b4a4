"""Committed tables of the engine studies: their numbers are those of the runs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.engines import summarise

MEASURED = Path(__file__).parents[1] / "results" / "measured"
FOLDERS = sorted(MEASURED.glob("*/engines*"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_table_comes_from_the_runs(folder: Path, tmp_path: Path) -> None:
    for name in ("study.json", "runs"):
        (tmp_path / name).symlink_to(folder / name)
    summarise.main(tmp_path)
    assert (tmp_path / "table.csv").read_text() == (folder / "table.csv").read_text()
    assert not pd.read_csv(folder / "table.csv").duplicated().any()


def test_all_four_studies_are_there() -> None:
    names = [folder.name for folder in FOLDERS]
    assert names == ["engines", "engines_hf", "engines_qwen", "engines_qwen_on"]
