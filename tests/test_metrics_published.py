"""The paper's Tables 10, 11, 21, 25 and 26 recomputed from the accuracies it prints.

Source of every number: Yuan et al., "Understanding and Mitigating Numerical Sources of
Nondeterminism in LLM Inference", arXiv 2506.09501v2, the table named beside it. Order of settings:
batch sizes 8, 16, 32 within each hardware. Accuracies are printed rounded; the number right is
recovered from them, since an accuracy is a count over the items (times samples) of its task.
"""

from __future__ import annotations

import pytest

from nondet.metrics.accuracy import std_of_counts
from nondet.metrics.paper_mode import std_at_acc

AIME, MATH500, GPQA = 30, 500, 198
LCB_EASY, LCB_MEDIUM, LCB_HARD = 182, 206, 123

# table, row, number of answers, accuracies in percent, printed spread in percent, its digits
ROWS = [
    (
        "10",
        "Qwen3-32B AIME BF16",
        AIME,
        "80 83.33 83.33 76.67 83.33 73.33 73.33 83.33 70 83.33 76.67 73.33",
        5.02,
        2,
    ),
    (
        "10",
        "Qwen3-32B AIME FP32, 2xL40S out of memory",
        AIME,
        "76.67 76.67 76.67 76.67 80 76.67 76.67 76.67 76.67",
        1.11,
        2,
    ),
    (
        "11",
        "DL8 GPQA BF16",
        GPQA,
        "33.84 38.38 41.41 40.91 41.92 41.41 43.43 38.38 44.95 38.89 43.94 41.92",
        3.03,
        2,
    ),
    (
        "11",
        "DL8 GPQA FP32",
        GPQA,
        "40.91 45.45 43.43 40.91 43.43 40.91 38.89 42.42 44.95 42.93 41.41 44.44",
        1.96,
        2,
    ),
    (
        "21",
        "DQ7 AIME n=16 FP32 (spread in Table 5)",
        AIME * 16,
        "53.33 56.25 55.21 53.13 54.17 54.17",
        1.1785,
        4,
    ),
    (
        "21",
        "DQ7 AIME n=16 BF16 (spread in Table 5)",
        AIME * 16,
        "53.33 56.88 55.42 56.67 53.54 53.13",
        1.7151,
        4,
    ),
    (
        "21",
        "DQ7 AIME n=64 FP32 (spread in Table 5)",
        AIME * 64,
        "54.38 54.12 53.39 54.74 54.38 55.63",
        0.7377,
        4,
    ),
    ("25", "AIME LayerCast", AIME, "43.33 43.33 43.33 43.33 43.33 43.33", 0, 2),
    ("25", "AIME BF16", AIME, "46.67 46.67 36.67 43.33 53.33 46.67", 5.44, 2),
    ("25", "MATH500 LayerCast", MATH500, "86.8 86.8 86.8 86.6 86.6 86.6", 0.11, 2),
    ("25", "MATH500 FP32", MATH500, "86.8 86.8 86.8 86.8 86.6 87.0", 0.13, 2),
    ("25", "MATH500 BF16", MATH500, "87.0 86.2 85.8 85.4 88.6 87.0", 1.14, 2),
    ("25", "LCB-Easy LayerCast", LCB_EASY, "73.08 73.08 73.63 73.63 74.18 74.18", 0.49, 2),
    ("25", "LCB-Easy FP32", LCB_EASY, "73.63 73.63 73.63 73.08 73.63 73.63", 0.22, 2),
    ("25", "LCB-Easy BF16", LCB_EASY, "71.98 74.18 72.53 74.18 69.78 73.63", 1.69, 2),
    ("25", "LCB-Medium LayerCast", LCB_MEDIUM, "30.58 30.10 29.61 29.61 30.10 30.58", 0.43, 2),
    ("25", "LCB-Medium FP32", LCB_MEDIUM, "30.58 30.10 30.58 30.58 30.58 30.10", 0.25, 2),
    ("25", "LCB-Medium BF16", LCB_MEDIUM, "28.16 27.67 32.04 29.61 28.64 27.18", 1.76, 2),
    ("25", "LCB-Hard LayerCast", LCB_HARD, "4.88 4.88 5.69 5.69 4.88 5.69", 0.44, 2),
    ("25", "LCB-Hard FP32", LCB_HARD, "4.88 4.88 4.88 5.69 5.69 5.69", 0.44, 2),
    ("25", "LCB-Hard BF16", LCB_HARD, "5.69 7.32 5.69 6.50 5.69 6.50", 0.66, 2),
    ("26", "DL8 AIME LayerCast and FP32", AIME, "36.67 " * 12, 0, 2),
    ("26", "DL8 AIME BF16, A100", AIME, "30 30 36.67 23.33 40 30", 5.87, 2),
    ("26", "DL8 AIME BF16, L40S", AIME, "30 36.67 26.67 33.33 30 30", 3.44, 2),
    (
        "26",
        "DL8 AIME BF16, all",
        AIME,
        "30 30 36.67 23.33 40 30 30 36.67 26.67 33.33 30 30",
        4.60,
        2,
    ),
]


# Rows whose spread, taken from the counts themselves, differs in the last printed digit: the
# paper rounds accuracies to four decimals first, and that rounding is visible.
ROUNDING_SHOWS = {
    ("10", "Qwen3-32B AIME BF16"),
    ("21", "DQ7 AIME n=16 BF16 (spread in Table 5)"),
    ("21", "DQ7 AIME n=64 FP32 (spread in Table 5)"),
    ("25", "LCB-Hard LayerCast"),
    ("25", "LCB-Hard FP32"),
}


@pytest.mark.parametrize(("table", "row", "n", "printed", "std", "digits"), ROWS)
def test_table_recomputes(
    table: str, row: str, n: int, printed: str, std: float, digits: int
) -> None:
    values = [float(value) for value in printed.split()]
    # The published way: accuracies with four decimals. Table 5 gives the spread of Table 21 with
    # more digits than its accuracies carry, so there only the first two can come out.
    paper = std_at_acc([value / 100 for value in values])
    assert round(100 * paper, 2) == round(std, 2)
    # Ours: from the number of right answers.
    counts = [round(value / 100 * n) for value in values]
    for value, count in zip(values, counts, strict=True):
        # Two decimals of a percent (54.12 of 1,920 is not the nearest one).
        assert abs(100 * count / n - value) < 0.01, (table, row, value)
    exact = round(100 * std_of_counts(counts, n), digits)
    assert (exact != std) == ((table, row) in ROUNDING_SHOWS)
    assert abs(exact - std) < 1.5 * 10**-digits


def test_equal_accuracies_print_zero_and_not_dust() -> None:
    assert std_at_acc([11 / 30] * 12) == 0.0
