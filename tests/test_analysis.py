"""The analysis of whole studies on disk: tables against plain loops, verdicts, odd studies."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import naive_metrics as naive
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factory import Row, make_study, write_run

from nondet.analysis import Analysis, analyse
from nondet.metrics.load import load
from nondet.metrics.paper_mode import paper_table
from nondet.metrics.ragged import Spill, from_rows
from nondet.metrics.verdict import DIFFERENT, INCONCLUSIVE, MAX_RATE, PASS, Evidence, decide
from nondet.study import Study, StudyError, load_study

GRID = [{"batch_size": size, "dtype": dtype} for dtype in ("bf16", "fp32") for size in (1, 4)]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return make_study(
        tmp_path_factory.mktemp("study"),
        GRID,
        items=12,
        tokens=20,
        repeats=2,
        diverge=[0, 0.8, 0.3, 0.5],
        limit=24,
        seed=4,
    )


@pytest.fixture(scope="module")
def analysis(study: Study) -> Analysis:
    return analyse(study, 7)


@pytest.fixture(scope="module")
def rows(study: Study) -> list[list[dict]]:
    """Rows of every run, as plain values."""
    return [run.table().to_pylist() for run in study.complete]


def cut(row: dict) -> bool:
    return row["finish_reason"] != "stop"


def pair(a: dict, b: dict):
    return naive.pair(a["tokens"], b["tokens"], cut(a), cut(b))


def test_summary(analysis: Analysis, study: Study, rows) -> None:
    table = analysis.summary
    assert table["run_id"].tolist() == [run.id for run in study.runs]
    assert analysis.reference == study.runs[0].id
    for place, run in enumerate(rows):
        parted = sum(pair(a, b)[0] is not None for a, b in zip(rows[0], run, strict=True))
        assert table["diverged"][place] == parted
        assert table["div_percent"][place] == pytest.approx(100 * parted / 12)
        assert table["accuracy"][place] == pytest.approx(naive.mean([r["correct"] for r in run]))
        assert table["mean_length"][place] == pytest.approx(
            naive.mean([len(r["tokens"]) for r in run])
        )
        assert table["truncated"][place] == sum(map(cut, run))
    assert table["repeat_identical"].tolist() == [True] * 8
    assert (table["div_low"] <= table["div_percent"]).all()
    assert table["batch_size"].tolist() == [1, 1, 4, 4, 1, 1, 4, 4]


def test_pairs(analysis: Analysis, rows) -> None:
    table = analysis.pairs
    assert len(table) == 8 * 7 / 2
    place = 0
    for a in range(8):
        for b in range(a + 1, 8):
            found = [pair(x, y) for x, y in zip(rows[a], rows[b], strict=True)]
            positions = [p for p, _, _ in found if p is not None]
            line = table.iloc[place]
            assert line["diverged"] == len(positions)
            assert line["identical"] == sum(same for _, same, _ in found)
            assert line["kind"] == ("repeat" if a // 2 == b // 2 else "setting")
            steps = sum(
                naive.shared(x["tokens"], y["tokens"]) + (p is not None)
                for x, y, (p, _, _) in zip(rows[a], rows[b], found, strict=True)
            )
            assert line["flips_per_token"] == pytest.approx(len(positions) / steps)
            if positions:
                assert line["median_first"] == np.median(positions)
            gaps = []
            for x, y in zip(rows[a], rows[b], strict=True):
                end = naive.shared(x["tokens"], y["tokens"])
                one, two = x["logprobs"][:end], y["logprobs"][:end]
                gaps += [naive.gap(p, q) for p, q in zip(one, two, strict=True)]
            assert line["max_abs_dlogprob"] == pytest.approx(max(gaps), abs=1e-15)
            assert line["mean_abs_dlogprob"] == pytest.approx(naive.mean(gaps), abs=1e-15)
            assert line["logprobs_differ"] == sum(gap > 0 for gap in gaps)
            place += 1


def test_divergence_items(analysis: Analysis, rows) -> None:
    table = analysis.divergence
    assert len(table) == 7 * 12
    for run in range(1, 8):
        for item in range(12):
            line = table.iloc[(run - 1) * 12 + item]
            a, b = rows[0][item], rows[run][item]
            position, _, was_cut = pair(a, b)
            assert line["item"] == f"item-{item:04d}"
            if position is None:
                assert line["position"] is not line["position"] or np.isnan(line["gap"])
                assert line["censor"] == ("cut" if was_cut else "finished")
                continue
            assert line["position"] == position
            assert line["event"]
            # The factory's two best candidates are 0.1 apart.
            if position < len(a["tokens"]):
                assert line["gap_logprob"] == pytest.approx(0.1, abs=1e-6)
                top = a["top_logprobs"][position * 5 : position * 5 + 2]
                assert line["gap"] == pytest.approx(math.exp(top[0]) - math.exp(top[1]))
            if position:
                expected = abs(a["logprobs"][position - 1] - b["logprobs"][position - 1])
                assert line["dlogprob_before"] == pytest.approx(expected, abs=1e-15)
                most = max(
                    abs(p - q)
                    for p, q in zip(a["logprobs"][:position], b["logprobs"][:position], strict=True)
                )
                assert line["dlogprob_largest"] == pytest.approx(most, abs=1e-15)


def test_groups_of_settings(analysis: Analysis, rows) -> None:
    groups = {
        "all settings": [0, 2, 4, 6],
        "batch_size 1": [0, 4],
        "dtype fp32": [4, 6],
        "repeats of batch_size 4, bf16": [2, 3],
    }
    index = analysis.div_index.set_index("group")
    for name, runs in groups.items():
        assert name in index.index, list(index.index)
        chosen = [[rows[run][item] for run in runs] for item in range(12)]
        positions = [
            naive.div_index([r["tokens"] for r in item], [cut(r) for r in item]) for item in chosen
        ]
        known = [p for p in positions if p is not None]
        assert index["diverged"][name] == len(known)
        assert index["paper_value"][name] == pytest.approx(naive.mean(known) if known else -1)
        distinct = [naive.unique([r["tokens"] for r in item]) for item in chosen]
        assert index["unique_outputs"][name] == pytest.approx(naive.mean(distinct))
        spread = naive.mean([naive.std([len(r["tokens"]) for r in item]) for item in chosen])
        length = analysis.avg_std_output_length.set_index("group")
        assert length["value"][name] == pytest.approx(spread)
        shares = [naive.mean([item[run]["correct"] for item in chosen]) for run in range(len(runs))]
        accuracy = analysis.std_at_acc.set_index("group")
        assert accuracy["value"][name] == pytest.approx(naive.std(shares))
        assert accuracy["range"][name] == pytest.approx(max(shares) - min(shares))
        answers = analysis.answers.set_index(["group", "metric"])["value"]
        same = [len({r["answer"] for r in item}) == 1 for item in chosen]
        assert answers[name, "TARa@N"] == pytest.approx(sum(same) / 12)
        assert answers[name, "TARr@N"] == pytest.approx(distinct.count(1) / 12)


def test_top_probability_spread(analysis: Analysis, rows) -> None:
    table = analysis.avg_std_top1_prob.set_index("group")
    for name, runs in (("all settings", [0, 2, 4, 6]), ("dtype fp32", [4, 6])):
        means, everything, shared_means = [], [], []
        for item in range(12):
            chosen = [rows[run][item] for run in runs]
            end = naive.shared_by_all([r["tokens"] for r in chosen])
            stds = [naive.std([math.exp(r["logprobs"][t]) for r in chosen]) for t in range(end)]
            everything += stds
            means.append(naive.mean(stds))
            whole = naive.shared_by_all([rows[run][item]["tokens"] for run in (0, 2, 4, 6)])
            shared_means.append(naive.mean(stds[:whole]))
        known = [value for value in means if value is not None]
        assert table["value"][name] == pytest.approx(naive.mean(known))
        assert table["pooled"][name] == pytest.approx(naive.mean(everything))
        assert table["positions"][name] == len(everything)
        shared = [value for value in shared_means if value is not None]
        assert table["global_prefix"][name] == pytest.approx(naive.mean(shared))


def test_attribution(analysis: Analysis, study: Study, rows) -> None:
    pairs = naive.one_factor([run.factors for run in study.complete], study.factors)
    table = analysis.attribution.set_index("factor")
    for name, found in pairs.items():
        same = [
            rows[a][item]["tokens"] == rows[b][item]["tokens"]
            for a, b in found
            for item in range(12)
        ]
        assert table["pairs"][name] == len(found)
        assert table["value"][name] == pytest.approx(sum(same) / len(same))
        assert table["low"][name] <= table["value"][name] <= table["high"][name]
    assert table["kind"]["repeat"] == "control"
    assert table["value"]["repeat"] == 1


def test_survival_is_at_the_reference(analysis: Analysis, study: Study, rows) -> None:
    run = study.complete[2]
    times, states = [], []
    for a, b in zip(rows[0], rows[2], strict=True):
        position, _, was_cut = pair(a, b)
        common = naive.shared(a["tokens"], b["tokens"])
        times.append(position if position is not None else max(common - 1, 0))
        states.append(1 if position is not None else 0 if was_cut else 2)
    table = analysis.survival[analysis.survival["run_id"] == run.id]
    got = table[["t", "at_risk", "events", "survival", "incidence", "finished"]].to_numpy()
    np.testing.assert_allclose(got, naive.kaplan_meier(times, states), atol=1e-12)
    assert (table["low"] <= table["survival"] + 1e-12).all()


def test_equal_seeds_give_equal_tables(study: Study, analysis: Analysis, tmp_path: Path) -> None:
    again = analyse(study, np.random.default_rng(7))
    for name, table in analysis.tables().items():
        assert table.equals(again.tables()[name]), name
    other = analyse(study, 8)
    assert not other.survival["low"].equals(analysis.survival["low"])
    analysis.write(tmp_path)
    stored = json.loads((tmp_path / "analysis.json").read_text())
    assert stored["verdict"] == analysis.verdict
    assert {path.stem for path in tmp_path.glob("*.csv")} == set(analysis.tables())


def test_paper_mode_table(analysis: Analysis) -> None:
    table = paper_table(
        analysis.std_at_acc,
        analysis.avg_std_output_length,
        analysis.div_index,
        analysis.avg_std_top1_prob,
    ).set_index("group")
    repeats = table.loc["repeats of batch_size 1, bf16"]
    assert (repeats["avg_div_index"], repeats["div_percent"]) == (-1, 0)
    whole = table.loc["all settings"]
    assert whole["std_at_acc"] == pytest.approx(100 * analysis.std_at_acc["value"][0])


def test_verdict_words(tmp_path: Path) -> None:
    same = make_study(tmp_path / "a", items=30, tokens=30, repeats=2, diverge=0, noise=0)
    found = analyse(same)
    assert found.verdict == PASS
    assert "0 of 30 items" in found.reasons[0]
    assert "last bit" in found.reasons[1]
    few = analyse(make_study(tmp_path / "b", items=8, tokens=64, diverge=0))
    assert few.verdict == INCONCLUSIVE
    assert "Too few items: 8" in few.reasons[0]
    short = analyse(make_study(tmp_path / "c", items=30, tokens=2, diverge=0))
    assert short.verdict == INCONCLUSIVE
    assert "Too few tokens" in short.reasons[0]
    lost = analyse(
        make_study(
            tmp_path / "d",
            [{}, {"batch_size": 2}, {"batch_size": 8}],
            items=40,
            diverge=0,
            failed=[1],
        )
    )
    assert lost.verdict == INCONCLUSIVE
    assert "1 of 3 runs" in lost.reasons[0]
    parted = analyse(make_study(tmp_path / "e", items=8, diverge=0.9, repeats=2))
    assert parted.verdict == DIFFERENT
    assert parted.reasons[0].startswith("Repeats are identical")


def test_repeats_that_differ_in_log_probabilities_alone_are_said(tmp_path: Path) -> None:
    study = make_study(tmp_path, items=30, tokens=30, repeats=2, diverge=0, noise=0)
    path = tmp_path / "runs" / study.complete[1].id / "tokens.parquet"
    table = pq.read_table(path)
    logprobs = table["logprobs"].to_pylist()
    logprobs[3][7] = float(np.nextafter(np.float32(logprobs[3][7]), np.float32(0)))
    place = table.schema.get_field_index("logprobs")
    changed = pa.array(logprobs, table.schema.field("logprobs").type)
    pq.write_table(table.set_column(place, table.schema.field("logprobs"), changed), path)
    found = analyse(load_study([tmp_path]))
    said = next(reason for reason in found.reasons if reason.startswith("Repeats"))
    assert "not in every log-probability" in said
    assert ", 1 of 938 positions" in said
    assert found.summary["repeat_identical"].tolist() == [False, False, True, True]
    assert found.controls["passed"].tolist() == [False, True]


def test_repeats_that_differ_come_first(tmp_path: Path) -> None:
    noisy = analyse(make_study(tmp_path / "a", items=20, diverge=0, repeats=2, repeat_diverge=0.5))
    assert noisy.verdict == INCONCLUSIVE
    assert "already differ" in noisy.reasons[0]
    assert not noisy.controls["passed"].all()
    only = analyse(make_study(tmp_path / "b", [{}], items=20, repeats=3, repeat_diverge=0.5))
    assert only.verdict == DIFFERENT
    assert "already differ" in only.reasons[0]
    beyond = decide(Evidence(4, 0, 100, 9999, [(2, 100, "r")], [(90, 100, "s")], 0.1))
    assert beyond[0] == DIFFERENT
    assert "already differ" in beyond[1][0]


def test_power_decides_a_pass() -> None:
    def word(items: int) -> str:
        return decide(Evidence(2, 0, items, 9999, [], [(0, items, "s")], 0.0))[0]

    assert MAX_RATE == 0.1
    assert (word(28), word(29)) == (INCONCLUSIVE, PASS)
    assert decide(Evidence(2, 0, 99, 9999, [], [(0, 99, "s")], 0.0, errors=1))[0] == INCONCLUSIVE


@pytest.mark.parametrize("failed", [(), (0,), (0, 1), (1,)])
def test_studies_with_little_in_them(tmp_path: Path, failed: tuple[int, ...]) -> None:
    found = analyse(make_study(tmp_path, items=1, tokens=1, failed=failed))
    assert len(found.summary) == 2
    assert found.summary["status"].tolist() == [
        "failed" if place in failed else "complete" for place in range(2)
    ]
    json.dumps(found.to_dict(items=True))
    if failed:
        assert found.verdict == INCONCLUSIVE


def test_one_setting_only(tmp_path: Path) -> None:
    found = analyse(make_study(tmp_path, [{}], items=4))
    assert found.verdict == INCONCLUSIVE
    assert found.reasons == ["Only one run completed: there is nothing to compare."]
    assert found.pairs.empty
    assert found.std_at_acc.empty
    assert list(found.pairs.columns)[:2] == ["run_a", "run_b"]


def odd_study(folder: Path) -> Study:
    """Empty responses, one token, NaN and -inf log-probabilities, unequal K, no answers, errors."""
    nan, inf = math.nan, math.inf
    for size, rows in enumerate(
        [
            [
                Row([], [], answer=None, correct=None),
                Row([7], [nan]),
                Row([1, 2, 3], [-inf, -0.5, nan]),
                Row([1], [-1.0], "error", None, "marker_error", None),
                Row([4, 5], [0.0, 0.0], "length", top_ids=[[4], [5]], top_logprobs=[[0.0], [0.0]]),
                Row([1, 2], []),
            ],
            [
                Row([], [], answer=None, correct=None),
                Row([8], [-1.0]),
                Row([1, 2, 4], [-inf, -0.25, -1.0]),
                Row([1, 9], [-1.0, -1.0]),
                Row(
                    [4, 6], [0.0, -inf], "length", top_ids=[[4, 5]] * 2, top_logprobs=[[0, -9]] * 2
                ),
                Row([1, 2], [-1.0, -1.0]),
            ],
        ]
    ):
        write_run(folder / "runs", {"batch_size": size + 1}, rows)
    return load_study([folder])


def test_odd_values(tmp_path: Path) -> None:
    study = odd_study(tmp_path)
    found = analyse(study)
    order = 1 if found.summary["batch_size"][0] == 1 else -1
    line = found.divergence.set_index("item")
    assert line["event"].tolist() == [False, True, True, False, True, False]
    assert line["position"].dropna().tolist() == [0, 2, 1]
    if order == 1:
        assert line["censor"]["item-0003"] == "cut"
    assert line["dlogprob_before"]["item-0002"] == 0.25
    assert found.pairs["max_abs_dlogprob"][0] == 0.25
    assert found.pairs["logprobs_compared"][0] == 4
    json.dumps(found.to_dict(items=True), allow_nan=False)


def test_several_samples_of_an_item(tmp_path: Path) -> None:
    settings = [{"temperature": 0.7, "samples": 3, "batch_size": size} for size in (1, 2)]
    study = make_study(tmp_path, settings, items=10, samples=3, diverge=0.5)
    found = analyse(study)
    assert found.summary["items"].tolist() == [30, 30]
    assert found.divergence["item"][1] == "item-0000#1"
    assert found.div_index["n"][0] == 10
    assert load(study.complete).items == 10


def test_items_that_do_not_match_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", {"batch_size": 1}, [Row([1], [0.0])] * 2)
    write_run(tmp_path / "runs", {"batch_size": 2}, [Row([1], [0.0])] * 3)
    with pytest.raises(StudyError, match="items: "):
        analyse(load_study([tmp_path]))


def test_many_runs_compare_logprobs_with_the_reference_only(tmp_path: Path) -> None:
    settings = [{"batch_size": size} for size in range(1, 7)]
    study = make_study(tmp_path, settings, items=5, repeats=1)
    found = analyse(study, pair_limit=4)
    known = found.pairs["logprobs_compared"] > 0
    assert known.tolist() == [True] * 5 + [False] * 10
    assert "6 runs" in found.notes[0]
    assert "5 items" in found.notes[1]
    assert found.pairs["diverged"].equals(analyse(study).pairs["diverged"])


def test_a_spill_reads_back_what_was_added() -> None:
    rows = [[1, 2, 3], [], [4]]
    for limit in (0, 16, 10**6):
        with Spill(memory_limit=limit) as spill:
            for shift in range(3):
                spill.add(from_rows([[v + shift for v in row] for row in rows], np.int32))
            spill.flush()
            for shift in (2, 0, 1):
                for place, row in enumerate(rows):
                    assert spill.row(shift, place).tolist() == [v + shift for v in row]


def test_nothing_here_imports_torch() -> None:
    code = "import sys, nondet.check, nondet.analysis; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_fork_at_the_end_of_one_response_has_candidates_on_the_longer_side(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "runs", {"batch_size": 1}, [Row([1, 2], [-1.0, -1.0])])
    write_run(tmp_path / "runs", {"batch_size": 2}, [Row([1, 2, 3], [-1.0, -1.0, -1.0])])
    line = analyse(load_study([tmp_path])).divergence.iloc[0]
    assert line["position"] == 2
    gaps = {
        int(line["len_ref"]): line["gap_logprob"],
        int(line["len_run"]): line["gap_run_logprob"],
    }
    assert math.isnan(gaps[2])
    assert gaps[3] == pytest.approx(0.1, abs=1e-6)


def test_a_response_cut_before_its_first_token_is_not_at_risk(tmp_path: Path) -> None:
    rows = [Row([5, 6], [-1.0, -1.0]), Row([7, 8], [-1.0, -1.0])]
    lost = Row([], [], "error", None, None, None)
    write_run(tmp_path / "runs", {"batch_size": 1}, rows)
    write_run(tmp_path / "runs", {"batch_size": 2}, [Row([9, 6], [-1.0, -1.0]), lost])
    curve = analyse(load_study([tmp_path])).survival
    assert curve[["t", "at_risk", "events", "survival"]].to_numpy().tolist() == [[0, 1, 1, 0]]
