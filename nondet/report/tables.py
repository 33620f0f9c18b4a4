"""Tables as CSV, Markdown and LaTeX, from one DataFrame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nondet.csv_files import save_csv

DASH = "–"
# Rows of a Markdown or LaTeX table.
MOST_LINES = 500
_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}"}


def show(value: Any, digits: int = 4) -> str:
    """A cell as text: exact zero as 0, nothing as a dash, whole numbers without a point."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() else _digits(number, digits)
    return str(value)


def with_interval(value: float, low: float, high: float) -> str:
    """An estimate with its interval in one cell."""
    if math.isnan(value):
        return DASH
    return f"{_share(value)} ({_share(low)} to {_share(high)})"


def _digits(number: float, digits: int) -> str:
    """Significant digits, more where a number would round to 1 or 100: those are exact."""
    while float(f"{number:.{digits}g}") in (1, 100) and digits < 17:
        digits += 1
    return f"{number:.{digits}g}"


def _share(number: float) -> str:
    """Three decimals, more where a share would round to none or all."""
    decimals = 3
    while float(f"{number:.{decimals}f}") in (0, 1) and number not in (0, 1) and decimals < 17:
        decimals += 1
    return f"{number:.{decimals}f}"


def cells(table: pd.DataFrame) -> list[list[str]]:
    """All cells as text, row by row."""
    return [[show(value) for value in row] for row in table.itertuples(index=False, name=None)]


def numeric(table: pd.DataFrame) -> list[bool]:
    """Which columns hold numbers, and so are set flush right."""
    return [
        pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)
        for kind in table.dtypes
    ]


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table, its columns aligned in the source too."""
    head = [str(name) for name in table.columns]
    body = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in cells(table)]
    widths = [max(3, *(len(row[i]) for row in [head, *body])) for i in range(len(head))]
    right = numeric(table)
    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    lines = [_row(head, widths, right), "| " + " | ".join(rule) + " |"]
    return "\n".join([*lines, *(_row(row, widths, right) for row in body)]) + "\n"


def _row(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = zip(row, widths, right, strict=True)
    padded = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in parts]
    return "| " + " | ".join(padded) + " |"


def latex(table: pd.DataFrame) -> str:
    """A LaTeX tabular with booktabs rules."""
    spec = "".join("r" if right else "l" for right in numeric(table))
    head = " & ".join(_tex(str(name)) for name in table.columns)
    rows = [" & ".join(_tex(cell) for cell in row) + r" \\" for row in cells(table)]
    lines = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", rf"{head} \\", r"\midrule", *rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    return "".join(_LATEX.get(char, char) for char in text).replace(DASH, "--")


def save(table: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Write ``name``.csv, .md and .tex, the last two cut where nobody would read on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{ending}" for ending in ("csv", "md", "tex")]
    save_csv(table, paths[0])
    shown, left = table.head(MOST_LINES), ""
    if len(shown) < len(table):
        left = f"The first {len(shown):,} of {len(table):,} rows; all of them are in {name}.csv."
    paths[1].write_text(markdown(shown) + (f"\n{left}\n" if left else ""))
    paths[2].write_text((f"% {left}\n" if left else "") + latex(shown))
    return paths
