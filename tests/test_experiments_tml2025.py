"""Completions of one prompt: counts on constructed answers, the task, the price's ratio."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from factory import Row, write_run
from hypothesis import given
from hypothesis import strategies as st

from experiments.tml2025 import words
from experiments.tml2025.completions import Completions, common_prefix, failures, main, tabulate
from experiments.tml2025.figure import panel
from experiments.tml2025.price import ratio_of
from experiments.tml2025.study import SCALES, studies
from nondet.backends.base import backend_class
from nondet.runs import write_json
from nondet.settings import SettingError, TaskSetting
from nondet.tasks import load_task

MACHINE = {"hardware": ["a processor"], "threads": 1, "versions": {"torch": "2.0", "triton": None}}
A, B, C = (1, 2, 3, 4), (1, 2, 9, 4), (1, 2, 3)


def test_counts_on_answers_made_by_hand() -> None:
    found = Completions((A, A, B, A, C, B), (0, 0, 1, 1, 2, 2), (2,) * 6)
    assert len(found.counts) == 3
    assert found.commonest == A
    assert found.counts[A] == 3
    assert found.same_tokens == 2
    assert found.parts_at == {2: 2, 3: 1}
    assert found.differing.value == pytest.approx(0.5)
    # Six completions, but only three waves were tried.
    assert found.differing.n == 3


def test_the_interval_covers_where_waves_are_of_unequal_size() -> None:
    """Each wave answers otherwise with the same chance, its copies together."""
    rng, covered, studies = np.random.default_rng(0), 0, 400
    for _ in range(studies):
        sizes = rng.integers(1, 65, 16)
        waves = np.repeat(np.arange(16), sizes)
        other = rng.random(16) < 0.4
        # A is the commonest where its waves hold more copies: take the share of B as it is.
        found = Completions(tuple(B if other[wave] else A for wave in waves), tuple(waves), ())
        share = 0.4 if found.commonest == A else 0.6
        covered += found.differing.low <= share <= found.differing.high
    # Within four standard errors of 95 %, and above what counting waves alike gives (91 %).
    assert covered / studies > 0.93


def test_one_other_token_in_a_thousand_is_seen() -> None:
    rng = np.random.default_rng(0)
    tokens = [A] * 1000
    same = Completions(tuple(tokens), tuple(range(1000)), (1,) * 1000)
    assert (len(same.counts), same.same_tokens, same.differing.value) == (1, 4, 0)
    place = int(rng.integers(1000))
    tokens[place] = (1, 2, 3, 5)
    one = Completions(tuple(tokens), tuple(range(1000)), (1,) * 1000)
    assert (len(one.counts), one.same_tokens, one.parts_at) == (2, 3, {3: 1})
    assert one.differing.low > 0


@given(st.lists(st.lists(st.integers(0, 2), max_size=5).map(tuple), min_size=1, max_size=12))
def test_the_common_beginning_is_that_of_every_pair(tokens: list[tuple[int, ...]]) -> None:
    found = Completions(tuple(tokens), (0,) * len(tokens), (1,) * len(tokens))
    assert found.same_tokens == min(common_prefix(a, b) for a in tokens for b in tokens)
    assert sum(found.parts_at.values()) == len(tokens) - found.counts[found.commonest]


def _study(folder: Path, kernels: str, waves: list[tuple[int, ...]], batch_size: int) -> None:
    rows = [Row(list(tokens), [-0.5] * len(tokens)) for tokens in waves]
    factors = {"kernels": kernels, "batch_size": batch_size, "batching": "varied"}
    run = write_run(folder / "runs", factors, rows, resolved=MACHINE)
    write_json(folder / "study.json", {"name": folder.name, "seed": 0, "runs": [run]})


def test_neighbours_are_left_out_and_alone_is_the_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import factory

    original = factory.table_of

    def renamed(rows: list[Row], samples: int = 1) -> object:
        table = original(rows, samples)
        ids = [f"copy-{n:04d}" for n in range(len(rows) - 1)] + ["neighbour-0000"]
        return table.set_column(0, "item_id", [ids])

    monkeypatch.setattr(factory, "table_of", renamed)
    # The last row of each is a neighbour and says something else.
    _study(tmp_path / "alone", "default", [B, B, C], 1)
    _study(tmp_path / "load", "default", [A, A, B, (7,)], 8)
    (tmp_path / "none" / "runs").mkdir(parents=True)
    table, parts = tabulate([tmp_path / "alone", tmp_path / "load"])
    assert table["completions"].tolist() == [2, 3]
    assert table["unique"].tolist() == [1, 2]
    assert table["as_alone"].tolist() == [2, 1]
    assert parts["position"].tolist() == [2]
    main([str(tmp_path / "out"), *(str(tmp_path / name) for name in ("alone", "load", "none"))])
    assert "left out" in capsys.readouterr().out
    assert "| **2** | 2 | 1 | 2 of 4 |" in (tmp_path / "out" / "README.md").read_text()
    kept = pd.read_csv(tmp_path / "out" / "completions.csv")
    assert kept["unique"].tolist() == [1, 2]
    drawn = pd.read_csv(tmp_path / "out" / "figures" / "completions.csv")
    last = drawn[drawn["run"] == "load, default"]["share"].iloc[-1]
    assert last == pytest.approx(2 / 3, abs=1e-3)


def test_a_repeat_is_no_second_loss_of_the_same_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import factory

    original = factory.table_of

    def renamed(rows: list[Row], samples: int = 1) -> object:
        ids = [f"copy-{n:04d}" for n in range(len(rows))]
        return original(rows, samples).set_column(0, "item_id", [ids])

    monkeypatch.setattr(factory, "table_of", renamed)
    factors = {"kernels": "default", "batch_size": 8, "batching": "varied"}
    rows = [Row(list(one), [-0.5] * len(one)) for one in (A, A, A, B, B)]
    for repeat in (0, 1):
        write_run(tmp_path / "load" / "runs", factors, rows, repeat=repeat, resolved=MACHINE)
    table, parts = tabulate([tmp_path / "load"])
    assert table["unique"].tolist() == [2, 2]
    assert panel(table, parts).table["share"].min() == pytest.approx(3 / 5)


def test_where_nothing_completed_one_line_says_why(tmp_path: Path) -> None:
    more = {"status": "failed", "reason": "no mode\nhere", "resolved": MACHINE}
    factors = {"kernels": "invariant", "batch_size": 8, "batching": "varied"}
    write_run(tmp_path / "load" / "runs", factors, [], **more)
    with pytest.raises(SystemExit, match=r"no run completed, nothing written\. no mode here$"):
        main([str(tmp_path / "out"), str(tmp_path / "load")])
    assert not (tmp_path / "out").exists()


def test_a_run_without_completions_is_said_with_its_reason(tmp_path: Path) -> None:
    factors = {"kernels": "invariant", "batch_size": 8, "batching": "varied"}
    more = {"status": "failed", "reason": "no mode\nhere", "resolved": MACHINE}
    run = write_run(tmp_path / "load" / "runs", factors, [], **more)
    write_json(tmp_path / "load" / "study.json", {"name": "load", "seed": 0, "runs": [run]})
    lost = failures([tmp_path / "load"])
    assert lost["reason"].tolist() == ["no mode here"]
    assert words._failed(pd.concat([lost, lost.assign(study="sizes")])) == (
        "- Did not run: hf, invariant kernels (load, sizes): no mode here\n"
    )


def test_the_task_repeats_one_prompt_among_neighbours_in_a_fixed_order() -> None:
    options = {"prompt": "Say it", "copies": 20, "neighbours": 5}
    task = load_task(TaskSetting("completions", options=options))
    prompts = {item.id: item.prompt for item in task.items}
    copies = [prompt for name, prompt in prompts.items() if name.startswith("copy")]
    assert copies == ["Say it"] * 20
    assert len(set(prompts.values())) == 6
    again = load_task(TaskSetting("completions", options=options))
    assert again == task
    other = load_task(TaskSetting("completions", options={**options, "order_seed": 1}))
    assert [item.id for item in other.items] != [item.id for item in task.items]
    places = [n for n, item in enumerate(task.items) if item.id.startswith("neighbour")]
    assert places != list(range(20, 25))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"copies": 0}, "task.copies"),
        ({"neighbours": -1}, "task.neighbours"),
        ({"prompt": " "}, "task.prompt"),
        ({"copies": 1.5}, "task.copies"),
        ({"again": 1}, "task.again"),
    ],
)
def test_mistakes_in_the_task_are_named(options: dict[str, object], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_task(TaskSetting("completions", options=options))  # type: ignore[arg-type]
    assert caught.value.key == key


def test_the_ratio_is_the_geometric_mean_with_students_interval() -> None:
    one = ratio_of([3.0], [2.0])
    assert (one.value, one.n) == (1.5, 1)
    assert math.isnan(one.low)
    found = ratio_of([2.0, 4.0, 3.0, 3.0], [1.0, 2.0, 1.0, 2.0])
    assert found.value == pytest.approx((2 * 2 * 3 * 1.5) ** 0.25)
    # scipy: exp of the t interval of the logarithms.
    from scipy import stats

    logs = np.log([2, 2, 3, 1.5])
    low, high = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert math.isnan(ratio_of([], []).value)


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang", "openai"])
def test_the_controls_of_the_study_are_there(engine: str) -> None:
    found = studies("", SCALES["gpu"], engine)
    alone = found["alone"]
    assert {s.batch_size for s in alone} == {1}
    assert sum(s.kernels == "default" and s.dtype == "bf16" for s in alone) == 4
    assert len({s.repeat for s in alone if s.kernels == "default" and s.dtype == "bf16"}) == 4
    assert {s.dtype for s in alone} == {"bf16", "fp32"}
    for name in ("sizes", "load"):
        assert {s.kernels for s in found[name]} == {"default", "invariant"}
        assert all(s.task.options["copies"] == 1000 for s in found[name])
    assert {s.task.options["neighbours"] for s in found["load"]} == {250}
    assert found["sampled"][0].temperature == 1.0
    for setting in (one for settings in found.values() for one in settings):
        backend_class(engine).check(setting)


def test_controls_are_judged_and_not_only_named() -> None:
    good = {
        "study": "alone",
        "backend": "hf",
        "dtype": "bf16",
        "kernels": "default",
        "completions": 3,
    }
    good |= {"unique": 1, "as_alone": 3}
    # Another process that answers alike within itself, but not as the first.
    other = {**good, "as_alone": 0}
    sampled = {**good, "study": "sampled", "unique": 2, "as_alone": None}
    said = words._controls(pd.DataFrame([good, good, sampled]))
    assert said == [
        "- Control held: alone, hf, bf16, default, 1 completion in 2 runs.",
        "- Control held: sampled, hf, bf16, more than 1 completion.",
    ]
    said = words._controls(pd.DataFrame([good, other, {**sampled, "unique": 1}]))
    assert [line.split(":")[0] for line in said] == ["- Control **FAILED**"] * 2
    missing = "- The control waves of 1 did not run with hf."
    assert words._controls(pd.DataFrame([sampled]))[-1] == missing
    # One engine's controls are no controls of another.
    both = [good, {**good, "backend": "vllm"}, sampled]
    missing = "- The control temperature 1: must be many did not run with vllm."
    said = words._controls(pd.DataFrame(both))
    assert said[-1] == missing
    assert "- Control held: alone, vllm, bf16, default, 1 completion in 1 run." in said


def test_the_price_says_what_did_not_run_and_what_did_not_agree() -> None:
    same = ["hf", "m", 8, 4, 10, "{}"]
    names = ["engine", "model", "sequences", "batch_size", "new_tokens", "options"]
    rows = [
        [*same, "default", 0, 2.0, 80, None],
        [*same, "default", 1, 2.0, 81, None],
        [*same, "invariant", 0, None, None, "no memory"],
    ]
    columns = [*names, "kernels", "round", "seconds", "tokens", "reason"]
    said = words._price(pd.DataFrame(rows, columns=columns))
    row = "| hf | m | 8 x 10, batch 4 | 2.00 (2.00 to 2.00) | did not run | no memory | 2 |"
    assert row in said
    assert "made 80 and 81 tokens in different rounds" in said
    rows[2:] = [[*same, "invariant", n, 3.0, 80, None] for n in (0, 1)]
    rows[1][9] = 80
    said = words._price(pd.DataFrame(rows, columns=columns))
    assert "| 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) | 1.50 (1.50 to 1.50) | 2 |" in said
    assert "did not agree" not in said
    # Measured again into the same file: the rounds of each call are paired among themselves.
    again = [[*row[:8], 2 * row[8], *row[9:]] for row in rows]
    said = words._price(pd.DataFrame([*rows[:3], *again], columns=columns))
    assert "4.00) | 6.00 (3.00 to 6.00) | 1.50 (1.50 to 1.50) | 3 |" in said
