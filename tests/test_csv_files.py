"""CSV files that do not depend on a processor's registers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from nondet.csv_files import save_csv


def test_the_last_digits_of_a_sum_do_not_show(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.3]
    there, here = (0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3)
    assert there != here
    texts = []
    for name, total in (("a", there), ("b", here)):
        mixed = np.array([total, None, "none"], dtype=object)
        save_csv(pd.DataFrame({"x": values, "total": total, "mixed": mixed}), tmp_path / name)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1] == "x,total,mixed\n0.1,0.6,0.6\n0.2,0.6,\n0.3,0.6,none\n"


def test_whole_numbers_missing_and_endless_values_stay(tmp_path: Path) -> None:
    table = pd.DataFrame({"n": [2**53 + 1], "x": [float("nan")], "y": [float("-inf")]})
    mixed = pd.Series([float("nan"), True, 7, 12345678.25], dtype=object)
    save_csv(table, tmp_path / "plain.csv")
    save_csv(pd.DataFrame({"m": mixed}), tmp_path / "mixed.csv")
    assert (tmp_path / "plain.csv").read_text() == "n,x,y\n9007199254740993,,-inf\n"
    assert (tmp_path / "mixed.csv").read_text() == 'm\n""\nTrue\n7\n12345678.2\n'
    assert pd.isna(mixed[0])  # the table given is left as it was
