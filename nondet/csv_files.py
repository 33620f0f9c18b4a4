"""Tables as CSV files that are the same on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

# Significant digits. The last ones of a float64 follow the processor: NumPy's sums and functions
# use the widest registers there are, and so add in another order. Nobody reads a tenth digit of a
# statistic, and a table that is made again elsewhere must be equal.
DIGITS = 9


def save_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index, floats to nine significant digits."""
    rounded = table.copy(deep=False)
    for name in table.columns:
        if table[name].dtype == object:
            rounded[name] = table[name].map(_word)
    rounded.to_csv(path, index=False, float_format=f"%.{DIGITS}g")


def _word(value: Any) -> Any:
    """Floats among other objects; the format of ``to_csv`` reaches only columns of floats."""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) and value == value else value
