"""The report as files: what is written, that it is whole, and that it holds at the edges."""

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from nondet.report import ReportResult, write_report
from nondet.report.__main__ import main
from nondet.report.published import beside_published, published_values
from nondet.report.terminal import print_report
from nondet.report.view import make_view
from nondet.study import load_study
from tests.factory import Row, make_study, write_run

GRID = [{"batch_size": size, "dtype": dtype} for dtype in ("bf16", "fp32") for size in (1, 4)]
PANELS = {
    "diverged",
    "survival",
    "incidence",
    "first_divergence",
    "raster_bf16",
    "raster_fp32",
    "pairs_matrix",
    "accuracy",
    "lengths",
    "fork_gap",
    "cost",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grid")
    make_study(path, GRID, items=12, diverge=[0, 0.8, 0, 0], seed=3, repeats=2, name="grid")
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> ReportResult:
    return write_report([folder], folder / "report", seed=7)


class Page(HTMLParser):
    """Ids, links, tags and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        for name in ("aria-labelledby", "for"):
            self.references += str(found.get(name) or "").split()
        for name in ("href", "src", "xlink:href"):
            if found.get(name):
                self.links.append(str(found[name]))

    handle_startendtag = handle_starttag


def test_the_first_files(result: ReportResult, folder: Path) -> None:
    out = folder / "report"
    assert result.verdict == "DIFFERENT"
    assert result.page == out / "index.html"
    assert all(path.exists() for path in result.paths)
    summary = pd.read_csv(out / "summary.csv")
    names = ["items", "diverged", "div_percent", "accuracy", "mean_length", "truncated"]
    names += ["tokens_per_s", "peak_memory_mb", "repeat_identical", "batch_size", "dtype"]
    assert set(names) <= set(summary.columns)
    assert len(summary) == 8
    assert summary["repeat_identical"].all()
    pairs = pd.read_csv(out / "pairs.csv")
    assert len(pairs) == 8 * 7 / 2
    assert {"items", "identical", "diverged", "median_first"} <= set(pairs.columns)
    record = json.loads((out / "study.json").read_text())
    assert (record["verdict"], record["seed"], record["name"]) == ("DIFFERENT", 7, "grid")
    assert len(record["runs"]) == 8
    assert {row["control"] for row in record["controls"]} == {"repeat"}
    assert {"nondet", "python", "numpy"} <= set(record["versions"])
    text = (out / "summary.md").read_text()
    assert text.startswith("# grid: DIFFERENT\n")
    assert "batch_size 4, bf16" in text


def test_runs_are_compared_within_their_dtype(result: ReportResult) -> None:
    table = result.summary.set_index("label")
    assert table["diverged"]["batch_size 4, bf16, repeat 0"] > 0
    # Both fp32 settings left the bf16 reference nowhere near as they left each other.
    assert table["diverged"]["batch_size 4, fp32, repeat 0"] == 0
    assert table["reference"]["batch_size 4, fp32, repeat 1"] == "batch_size 1, fp32, repeat 0"
    assert table["reference"]["batch_size 4, bf16, repeat 1"] == "batch_size 1, bf16, repeat 0"


def test_runs_are_compared_within_their_kernels(tmp_path: Path) -> None:
    settings = [{"kernels": k, "batch_size": b} for k in ("default", "invariant") for b in (1, 4)]
    # Invariant kernels give other answers than the default ones, but always the same.
    make_study(tmp_path, settings, items=20, diverge=[0, 0.9, 0.9, 0.9], fork_at=3)
    runs = sorted((tmp_path / "runs").glob("*/run.json"))
    by_setting = {}
    for path in runs:
        factors = json.loads(path.read_text())["factors"]
        by_setting[factors["kernels"], factors["batch_size"]] = path.parent
    same = "tokens.parquet"
    shutil.copy(by_setting["invariant", 1] / same, by_setting["invariant", 4] / same)
    result = write_report([tmp_path], tmp_path / "report")
    table = result.summary.set_index(["kernels", "batch_size"])["diverged"]
    assert table["invariant", 1] == table["invariant", 4] == 0
    assert table["default", 4] > 10
    assert "the first run with the same kernels" in result.page.read_text()
    assert (tmp_path / "report" / "figures" / "raster_invariant.png").exists()


def test_a_dtype_sweep_is_compared_with_its_first_run(tmp_path: Path) -> None:
    study = make_study(tmp_path, [{"dtype": "fp32"}, {"dtype": "bf16"}], diverge=1.0)
    summary = make_view(study).summary
    assert summary["diverged"].tolist() == [0, 8]


def test_every_table_and_figure_is_there_in_every_form(result: ReportResult, folder: Path) -> None:
    tables = {path.stem for path in (folder / "report" / "tables").iterdir()}
    assert {"summary", "pairs", "attribution", "std_at_acc", "survival", "flips"} <= tables
    for name in tables:
        for ending in ("csv", "md", "tex"):
            assert (folder / "report" / "tables" / f"{name}.{ending}").stat().st_size
    figures = folder / "report" / "figures"
    assert {path.stem for path in figures.iterdir()} == PANELS
    for name in PANELS:
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (figures / f"{name}.svg").read_text()
        assert len(pd.read_csv(figures / f"{name}.csv"))


def test_the_page_needs_nothing_from_outside(result: ReportResult) -> None:
    text = result.page.read_text()
    without = re.sub(r'xmlns(:xlink)?="[^"]+"', "", text)
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)", without)
    page = Page(result.page)
    assert not any(tag == "link" and a.get("rel") != "icon" for tag, a in page.tags)
    assert not any(tag == "script" and "src" in a for tag, a in page.tags)


def test_ids_are_unique_and_every_link_leads_somewhere(result: ReportResult) -> None:
    page = Page(result.page)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.references) <= set(page.ids)
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        elif not link.startswith("data:"):
            assert (result.page.parent / link).exists(), link


def test_the_page_can_be_read_without_seeing_it(result: ReportResult) -> None:
    page = Page(result.page)
    drawings = [a for tag, a in page.tags if tag == "svg"]
    assert len(drawings) == len(PANELS)
    assert all(a.get("role") == "img" and a.get("aria-labelledby") for a in drawings)
    assert all(a.get("scope") in ("col", "row") for tag, a in page.tags if tag == "th")
    assert sum(tag == "caption" for tag, _ in page.tags) == sum(t == "table" for t, _ in page.tags)
    assert ("html", {"lang": "en"}) in page.tags
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    titles = re.findall(r'<title id="alt-[^"]+">([^<]+)</title>', result.page.read_text())
    assert all(len(title) > 20 for title in titles)


def test_captions_state_items_repeats_hardware_and_versions(tmp_path: Path) -> None:
    rows = [Row([5, 6, 2], [-0.1] * 3)] * 3
    environment = {
        "cpu": "Some CPU",
        "cpus": 2,
        "gpus": ["NVIDIA H200", "NVIDIA H200"],
        "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    }
    for repeat in (0, 1):
        write_run(
            tmp_path / "runs",
            {"batch_size": 2},
            rows,
            repeat=repeat,
            environment=environment,
            observed={"device": "cuda", "logprobs_mode": "raw"},
        )
    text = write_report([tmp_path], tmp_path / "report").page.read_text()
    captions = re.findall(r"<figcaption>(.*?)<", text, re.S)
    drawn = [caption for caption in captions if caption.strip()]
    facts = "3 items; 1 setting; 1 repeat; 2 × NVIDIA H200; torch 2.13.0, transformers 5.24.0."
    assert drawn
    assert all(facts in caption for caption in drawn)


def test_the_same_study_gives_the_same_bytes(tmp_path: Path) -> None:
    make_study(tmp_path / "study", items=4, tokens=12)
    outs = [tmp_path / name for name in ("a", "b")]
    for out in outs:
        write_report([tmp_path / "study"], out, seed=1)
    names = sorted(path.relative_to(outs[0]) for path in outs[0].rglob("*") if path.is_file())
    assert names == sorted(p.relative_to(outs[1]) for p in outs[1].rglob("*") if p.is_file())
    for name in names:
        assert (outs[0] / name).read_bytes() == (outs[1] / name).read_bytes(), name


def test_the_seed_reaches_the_bands(folder: Path) -> None:
    study = load_study([folder])
    one, two = make_view(study, 1).survival, make_view(study, 2).survival
    assert not one["low"].equals(two["low"])
    assert one["survival"].equals(two["survival"])


STUDIES: dict[str, dict[str, Any]] = {
    "one setting": {"settings": [{}]},
    "nothing diverged": {"diverge": 0.0, "noise": 0.0, "items": 40},
    "everything at 0": {"diverge": 1.0, "fork_at": 0},
    "one item, one token": {"items": 1, "tokens": 1, "diverge": 1.0, "fork_at": 0},
    "the reference failed": {"failed": [0]},
    "all failed": {"failed": [0, 1]},
    "long names": {"settings": [{"attention": "a " * 40 + str(n)} for n in range(3)]},
    "markup in names": {"settings": [{"attention": f"<b>&$_^{n}"} for n in range(2)]},
    "samples, cut": {"samples": 3, "items": 4, "limit": 4},
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_gets_a_page_and_no_panel_is_empty(name: str, tmp_path: Path) -> None:
    make_study(tmp_path, **{"items": 5, "tokens": 12, **STUDIES[name]})
    result = write_report([tmp_path], tmp_path / "report")
    text = result.page.read_text()
    for figure in re.findall(r"<figure.*?</figure>", text, re.S):
        drawn = "<svg" in figure
        words = re.search(r'<p class="words">(.+?)</p>', figure)
        assert drawn != bool(words and len(words[1]) > 15), figure[:200]
    assert result.verdict in text
    assert "<b>&$" not in re.sub(r'<script type="application/json".*?</script>', "", text)
    page = Page(result.page)
    assert len(page.ids) == len(set(page.ids))
    record = json.loads((tmp_path / "report" / "study.json").read_text())
    assert record["verdict"] == result.verdict


def test_a_missing_run_is_shown(tmp_path: Path) -> None:
    settings = [{"batch_size": size} for size in (1, 2, 4)]
    make_study(tmp_path, settings, failed=[1])
    result = write_report([tmp_path], tmp_path / "report")
    assert "out of memory" in (tmp_path / "report" / "summary.md").read_text()
    table = pd.read_csv(tmp_path / "report" / "figures" / "diverged.csv")
    assert table.set_index("setting")["missing"]["batch_size 2"] == "failed"
    assert "out of memory" in result.page.read_text()


def test_unmarked_responses_get_words_instead_of_bars(tmp_path: Path) -> None:
    rows = [Row([5, 2], [-0.1] * 2, answer=None, outcome="", correct=None)] * 3
    for size in (1, 2):
        write_run(tmp_path / "runs", {"batch_size": size}, rows)
    result = write_report([tmp_path], tmp_path / "report")
    assert "the task has no marker" in result.page.read_text()
    assert not (tmp_path / "report" / "figures" / "accuracy.png").exists()


def test_what_a_model_writes_cannot_leave_the_data(tmp_path: Path) -> None:
    evil = "</script><script>window.hit = 1</script><!-- <script>"
    rows = [Row([5, 2], [-0.1] * 2, text=evil)]
    for size in (1, 2):
        write_run(tmp_path / "runs", {"batch_size": size}, rows)
    text = write_report([tmp_path], tmp_path / "report").page.read_text()
    assert "window.hit = 1</script>" not in text
    data = re.search(r'id="viewer-data">(.*?)</script>', text, re.S)
    assert data is not None
    assert "<!--" not in data[1]
    assert json.loads(data[1])["items"][0]["responses"][0]["text"] == evil


def test_folders_of_several_machines_are_merged(tmp_path: Path) -> None:
    make_study(tmp_path / "one", [{"batch_size": 1}, {"batch_size": 4}], items=3, seed=5)
    make_study(tmp_path / "two", [{"batch_size": 1}, {"batch_size": 8}], items=3, seed=5)
    assert main([str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "r")]) == 0
    assert len(pd.read_csv(tmp_path / "r" / "summary.csv")) == 3


def test_incomparable_runs_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path / "one", [{"batch_size": 1}])
    make_study(tmp_path / "two", [{"batch_size": 4, "max_new_tokens": 99}])
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main([*folders, "--out", str(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert "max_new_tokens" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--serve", "often"]])
def test_bad_arguments_exit_2_with_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [str(tmp_path / part) if not part.startswith("-") else part for part in arguments[:1]]
    assert main([*place, *arguments[1:]]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


def test_an_old_report_in_the_folder_is_no_study(result: ReportResult, folder: Path) -> None:
    assert len(load_study([folder]).runs) == 8


def test_terminal_table_holds_every_setting(result: ReportResult, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        print_report(result, Console(file=file, width=80))
    text = (tmp_path / "out").read_text()
    assert "DIFFERENT" in text
    for label in result.summary["label"]:
        assert label in text


def test_large_studies_keep_a_small_page(tmp_path: Path) -> None:
    make_study(tmp_path, items=120, tokens=20)
    result = write_report([tmp_path], tmp_path / "report")
    assert result.page.stat().st_size < 1_500_000
    assert "To keep this page small it holds 60 of 120 items" in result.page.read_text()


def test_ours_beside_published(tmp_path: Path) -> None:
    model = "Qwen2.5-7B-Instruct"
    settings = [{"batch_size": n, "model": f"hub:Qwen/{model}"} for n in (8, 16)]
    make_study(tmp_path, settings, items=6, diverge=1.0)
    for path in (tmp_path / "runs").glob("*/run.json"):
        record = json.loads(path.read_text())
        record["task"]["name"] = "math500"
        path.write_text(json.dumps(record))
    view = make_view(load_study([tmp_path]))
    table = beside_published(view).set_index(["metric", "dtype"])
    values = published_values()
    ours = values[(values["model"] == model) & (values["task"] == "math500")]
    assert set(table.index.get_level_values("dtype")) == {"bf16"}
    cell = ours[(ours["metric"] == "div_percent") & (ours["dtype"] == "bf16")]["value"].item()
    row = table.loc[("div_percent", "bf16")]
    assert row["published"] == cell
    assert row["ours"] == 100.0
    assert np.isfinite(row["low"])
    text = write_report([tmp_path], tmp_path / "report").page.read_text()
    assert "Ours beside published" in text
    shutil.rmtree(tmp_path / "report")


def test_no_published_values_for_another_model(folder: Path, result: ReportResult) -> None:
    assert beside_published(make_view(load_study([folder]))).empty
    assert "beside published" not in result.page.read_text()


def test_serve_shows_the_page_to_this_machine_only(tmp_path: Path) -> None:
    make_study(tmp_path, [{}], items=2, tokens=4)
    command = [sys.executable, "-m", "nondet.report", str(tmp_path), "--serve", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if line.startswith("http"))
            url = address.split()[0]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert b"INCONCLUSIVE" in answer.read()
        finally:
            server.terminate()
