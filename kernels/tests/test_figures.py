"""The page about the kernels says what the committed measurements say."""

from __future__ import annotations

from pathlib import Path

import figures
import pytest

PAGE = (Path(figures.__file__).resolve().parents[1] / "README.md").read_text()


@pytest.mark.parametrize("part", [figures.operations, figures.models, figures.fp32_tiles])
def test_every_line_of_a_table_stands_on_the_page(part: object) -> None:
    assert callable(part)
    lines = part()
    assert lines
    missing = [line for line in lines if line.rstrip() not in PAGE]
    assert missing == []


def test_the_page_names_every_error_above_a_tenth_more() -> None:
    found = figures.errors()
    assert len(found) == 5, "a new list: the page's paragraph on errors has to follow"
    for line in found:
        assert f"{float(line.split(':')[0].split()[-1]):.3f}" in PAGE


def test_no_draw_and_no_variant_differs() -> None:
    counts = {"bits": ("alone", "position", "neighbours", "layout"), "every_m": ("differ",),
              "mixed_bits": ("plans", "rows"), "plans": ("differ",)}  # fmt: skip
    attention = ("padded", "cache", "varlen", "chunks", "decode", "splits", "engines")
    counts |= dict.fromkeys(("attention_bits", "attention_bits_activations"), attention)
    for name, columns in counts.items():
        rows = figures.load(name)
        assert sum(int(row[column]) for row in rows for column in columns) == 0, name
    for name in ("attention_variants", "attention_fp32"):
        assert {row["bits"] for row in figures.load(name)} == {"True"}
    rows = figures.load("fp32")
    assert {row["equal"] for row in rows} == {"True"}
    assert {row["equal_alone"] for row in rows} == {"True", ""}
    draws = sum(int(row["cases"]) for row in figures.load("bits"))
    assert f"{draws:,}" in PAGE


def test_ratios_are_those_of_their_own_times() -> None:
    """Three sizes by hand: 2, 1 and 0.5 have the geometric mean 1."""
    times = ("1", "2", "3"), ("2", "1", ""), ("4", "0.5", "12")
    rows = [dict(us=us, ratio=ratio, vllm_us=vllm) for us, ratio, vllm in times]
    assert figures.line("x", rows, "torch", 1.0) == (
        "| x, 3 sizes | torch | 1.00 (0.50 to 2.00) | 3.00 (3.00 to 3.00) | 1.00 met |"
    )
    worse = [{**row, "vllm_us": ""} for row in rows[1:]]
    assert figures.line("x", worse, "torch", 0.9).endswith("| - | 0.90 **not met** |")
