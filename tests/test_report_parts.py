"""Small parts of the report: cells, labels, looks, bins, the viewer's data."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nondet.report import tables
from nondet.report.curves import BINS, draw_survival, thinned
from nondet.report.drawn import bin_edges, flip_words
from nondet.report.grids import _floor
from nondet.report.panel import Panel, inline
from nondet.report.style import canvas, house, looks, shorten, told_apart, wrap
from nondet.report.viewer import BEFORE, Response, _entries, first_difference, pieces


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-17, "1e-17"),
        (3, "3"),
        (np.int64(3), "3"),
        (2.0, "2"),
        (1234.5678, "1235"),
        (0.123456, "0.1235"),
        (float("nan"), "–"),
        (None, "–"),
        (pd.NA, "–"),
        (True, "yes"),
        (np.False_, "no"),
        (float("inf"), "inf"),
        ("a|b", "a|b"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert tables.show(value) == text


def test_markdown_and_latex_escape_what_would_break_them() -> None:
    table = pd.DataFrame({"a_b": ["x|y", "50 %"], "n": [1, 22]})
    lines = tables.markdown(table).splitlines()
    assert lines[2] == r"| x\|y |   1 |"
    assert len({len(line) for line in lines}) == 1
    assert lines[1].endswith("--: |")
    text = tables.latex(table)
    assert r"a\_b & n \\" in text
    assert r"50 \% & 22 \\" in text
    assert r"\begin{tabular}{lr}" in text


def test_labels_are_cut_in_the_middle_and_wrapped() -> None:
    assert shorten("short") == "short"
    cut = shorten("x" * 50, 20)
    assert len(cut) == 20
    assert "…" in cut
    assert wrap("batch_size 8, layercast, gpus 2").count("\n") == 1
    for label in ("word " * 30, "x" * 200):
        assert all(len(line) <= 30 for line in wrap(label).split("\n"))
        assert wrap(label).count("\n") <= 1


def test_dtypes_differ_by_colour_and_marker_settings_by_line() -> None:
    drawn = looks([{"dtype": d, "batch_size": b} for d in ("bf16", "fp32") for b in (1, 2)])
    assert drawn[0].colour == drawn[1].colour != drawn[2].colour
    assert drawn[0].marker != drawn[2].marker
    assert drawn[0].hatch != drawn[2].hatch
    assert drawn[0].line != drawn[1].line
    same = looks([{"dtype": "bf16", "batch_size": b} for b in (1, 2, 4)])
    assert len({look.colour for look in same}) == 3
    assert len({str(look.line) for look in same}) == 3


def test_curves_drawn_together_have_dashes_of_their_own() -> None:
    many = looks([{"dtype": d, "batch_size": b} for b in range(1, 20) for d in ("bf16", "fp32")])
    named = {f"{place}": look for place, look in enumerate(many)}
    together = ["0", "16", "32", "2", "1", "17", "33", "34"]
    drawn = told_apart(named, together)
    assert list(drawn) == together
    assert len({(look.colour, str(look.line)) for look in drawn.values()}) == len(together)
    assert (drawn["0"], drawn["2"]) == (named["0"], named["2"])
    assert all(drawn[name].colour == named[name].colour for name in together)


def test_invariant_kernels_are_hollow() -> None:
    default, invariant = looks([{"kernels": "default"}, {"kernels": "invariant"}])
    assert (default.hollow, invariant.hollow) == (False, True)
    assert invariant.face != invariant.colour


def test_bins_double_and_hold_the_last() -> None:
    assert bin_edges(0) == [0, 1]
    assert bin_edges(1) == [0, 1, 2]
    assert bin_edges(7) == [0, 1, 2, 4, 8]
    assert bin_edges(8) == [0, 1, 2, 4, 8, 16]


def test_percent_is_100_and_0_only_when_exact() -> None:
    assert [_floor(value) for value in (1.0, 0.9999, 0.5, 0.0001, 0.0)] == [100, 99, 50, 1, 0]


def test_flip_words() -> None:
    row = {"is_reference": False, "turned_wrong": 2, "turned_right": 1, "p": 1.0}
    assert flip_words(row) == "+1 −2, p 1.00"
    assert flip_words({**row, "turned_wrong": 0, "turned_right": 0}) == "no flips"
    assert flip_words({**row, "is_reference": True}) == "reference"
    assert flip_words({**row, "turned_wrong": None}) == ""


def test_a_curve_is_drawn_as_the_steps_of_its_table() -> None:
    curve = pd.DataFrame(
        {
            "setting": "a",
            "position": [-1, 0, 3],
            "survival": [1.0, 0.75, 0.5],
            "low": [1.0, 0.4, 0.2],
            "high": [1.0, 1.0, 0.9],
        }
    )
    with house():
        _, ax = canvas(3, 2)
        draw_survival(ax, curve, {"a": looks([{}])[0]}, last=9)
    (line,) = ax.get_lines()
    assert line.get_xdata().tolist() == [-1, 0, 3, 9]
    assert line.get_ydata().tolist() == [1.0, 0.75, 0.5, 0.5]
    assert line.get_drawstyle() == "steps-post"


def test_inline_drawings_follow_the_theme_and_keep_their_ids_apart() -> None:
    with house():
        panels = []
        for name in ("one", "two"):
            figure, ax = canvas(3, 2)
            ax.plot([0, 1], [0, 1])
            ax.set_xlabel("a < b & c")
            panels.append(Panel(name, "T", 'alt "<>&', pd.DataFrame(), figure))
        texts = [inline(panel) for panel in panels]
    assert "var(--ink)" in texts[0]
    assert "#16191d" not in texts[0]
    assert "<metadata" not in texts[0]
    assert "&lt;&gt;&amp;" in texts[0]
    ids = [{part.split('"')[0] for part in text.split(' id="')[1:]} for text in texts]
    assert not ids[0] & ids[1]
    with pytest.raises(ValueError, match="three"):
        inline(Panel("three", "T", "", pd.DataFrame()))


@pytest.mark.parametrize(
    ("a", "b", "fork"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1], [1, 3], 1),
        ([], [1], 0),
        ([2], [1], 0),
    ],
)
def test_first_difference(a: list[int], b: list[int], fork: int | None) -> None:
    assert first_difference(a, b) == fork == first_difference(b, a)


class _FakeRun:
    top_k = 2


def _response(tokens: list[int]) -> Response:
    ids = [value for token in tokens for value in (token, token + 1)]
    return Response(tokens, "text", "stop", "right", ids, [-0.1, -2.5] * len(tokens))


def test_viewer_entries_hold_the_fork_and_its_candidates() -> None:
    common = list(range(10, 10 + 3 * BEFORE))
    runs = [_FakeRun()] * 3
    a, b, c = (
        _response([*common, 1, 2]),
        _response([*common, 7, 2]),
        _response([*common, 1, 2]),
    )
    entries = _entries([a, b, c], runs, None)  # type: ignore[arg-type]
    assert all(entry is not None for entry in entries)
    first, second, third = entries
    assert first is not None
    assert second is not None
    assert third is not None
    fork = len(common)
    assert first["forks"] == [None, fork, None]
    assert second["forks"] == [fork, None, fork]
    assert first["from"] == fork - BEFORE
    assert first["ids"][fork - first["from"]] == 1
    assert second["tops"][str(fork)] == [[7, "", -0.1], [8, "", -2.5]]
    assert _entries([a, None, c], runs, None)[1] is None  # type: ignore[arg-type]


def test_unknown_candidates_are_left_out() -> None:
    part = Response([5], "t", "stop", "", [5, -1], [-0.1, float("nan")])
    other = Response([6], "t", "stop", "", [-1, -1], [float("nan")] * 2)
    first, second = _entries([part, other], [_FakeRun()] * 2, None)  # type: ignore[list-item]
    assert first is not None
    assert second is not None
    assert first["tops"]["0"] == [[5, "", -0.1]]
    assert second["tops"]["0"] == []


def test_a_report_needs_no_engine() -> None:
    code = "import sys, nondet.report; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class _SpaceDropping:
    """A tokenizer that, as some do, drops the space before the first token it decodes."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(f" w{token}" for token in ids).lstrip()


def test_pieces_join_to_the_text() -> None:
    tokenizer = _SpaceDropping()
    assert pieces(tokenizer, [1, 2, 3]) == ["w1", " w2", " w3"]
    assert pieces(tokenizer, []) == []


def test_a_thinned_curve_ends_and_starts_as_the_whole_one() -> None:
    positions = np.arange(-1, 10_000)
    curve = pd.DataFrame({"position": positions, "survival": np.linspace(1, 0, len(positions))})
    thin = thinned(curve, 9_999)
    assert len(thin) <= BINS + 2
    assert thin.iloc[0].equals(curve.iloc[0])
    assert thin.iloc[-1].equals(curve.iloc[-1])
    short = curve.head(20)
    assert thinned(short, 18).equals(short)


def test_long_tables_are_whole_in_their_csv_only(tmp_path: Path) -> None:
    table = pd.DataFrame({"n": range(tables.MOST_LINES + 7)})
    csv, text, tex = tables.save(table, tmp_path, "long")
    assert len(pd.read_csv(csv)) == len(table)
    assert f"of {len(table)} rows; all of them are in long.csv" in text.read_text()
    assert tex.read_text().startswith("% The first 500")
    assert tex.read_text().count("\\\\") == tables.MOST_LINES + 1
