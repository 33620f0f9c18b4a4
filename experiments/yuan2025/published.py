"""The paper's printed values, from results/published and, for tables 12 and 15, from here."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from nondet.report.published import published_values

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
GPUS = {"2 x": "2", "4 x": "4"}


def values() -> pd.DataFrame:
    """One row a printed summary value; the columns of results/published/values.csv."""
    own = pd.read_csv(HERE / "published.csv", keep_default_na=False)
    return pd.concat([published_values(), own], ignore_index=True)


def levels() -> pd.DataFrame:
    """One row a printed accuracy, in percent."""
    path = ROOT / "results" / "published" / "accuracies.csv"
    table = pd.read_csv(path, dtype={"printed_std": str})
    scale = table["unit"].map({"percent": 1.0, "share": 100.0})
    return table.assign(accuracy=table["accuracy"] * scale)


def suspects() -> pd.DataFrame:
    """The contradictions in the published record."""
    return pd.read_csv(ROOT / "results" / "published" / "suspects.csv", keep_default_na=False)
