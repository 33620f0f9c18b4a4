"""The run folder: whole files only, every item once, refusals that name the field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from factory import Row, write_run

from nondet.backends.base import Request, Response
from nondet.runs import SCHEMA_VERSION, Run, RunWriter, digest, incomparable, read_run, write_table
from nondet.study import StudyError, load_study, run_folders
from nondet.worker import check_responses, reason_of, wave_table
from nondet.workload import Workload, item_seed, workload_from

K = 2


def response(item: str, length: int = 3) -> Response:
    ids = np.arange(length * K, dtype=np.int32).reshape(length, K)
    top = -np.arange(length * K, dtype=np.float32).reshape(length, K)
    return Response(item, ids[:, 0].copy(), top[:, 0].copy(), ids, top, "length", "text")


def workload(items: int) -> Workload:
    requests = tuple(Request(f"i{n}", (n, n + 1), f"p{n}", n) for n in range(items))
    return Workload(requests, (0,) * items, tuple(f"h{n}" for n in range(items)), "f")


def write_parts(writer: RunWriter, work: Workload, waves: list[list[int]]) -> None:
    writer.parts.mkdir(parents=True, exist_ok=True)
    for number, wave in enumerate(waves):
        rows = [response(work.requests[p].item_id) for p in wave]
        write_table(writer.part_path(number), wave_table(work, wave, rows, number))


def test_parts_come_together_in_task_order(tmp_path: Path) -> None:
    writer, work = RunWriter(tmp_path), workload(5)
    write_parts(writer, work, [[4, 1], [0], [3, 2]])
    table = writer.collect([(f"i{n}", 0) for n in range(5)])
    assert table["item_id"].to_pylist() == [f"i{n}" for n in range(5)]
    assert table["top_ids"][0].as_py() == list(range(6))
    assert table["prompt_hash"].to_pylist() == ["h0", "h1", "h2", "h3", "h4"]


@pytest.mark.parametrize("waves", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], [2]]])
def test_a_gap_or_a_double_is_refused(tmp_path: Path, waves: list[list[int]]) -> None:
    writer = RunWriter(tmp_path)
    write_parts(writer, workload(3), waves)
    with pytest.raises(ValueError, match="rows for 3"):
        writer.collect([(f"i{n}", 0) for n in range(3)])


def test_leftovers_of_a_kill_are_no_parts(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    write_parts(writer, workload(2), [[0]])
    (writer.parts / ".000001.parquet.77").write_bytes(b"half")
    assert writer.done_waves() == {0}
    writer.start({"run_id": "x"})
    assert [path.name for path in writer.parts.iterdir()] == ["000000.parquet"]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(ValueError, match="run schema"):
        read_run(tmp_path)


BASE = {
    "run_id": "a",
    "status": "complete",
    "repeat": 0,
    "model_fingerprint": "m",
    "prompts_fingerprint": "p",
    "observed": {"logprobs_mode": "raw"},
    "factors": {
        "max_new_tokens": 8,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 1,
        "samples": 1,
        "top_k": 5,
        "dtype": "bf16",
    },
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_fingerprint": "n"}, "model_fingerprint"),
        ({"prompts_fingerprint": "q"}, "prompts_fingerprint"),
        ({"factors": {**BASE["factors"], "max_new_tokens": 9}}, "max_new_tokens"),  # type: ignore[dict-item]
        ({"factors": {**BASE["factors"], "seed": 2}}, "seed"),  # type: ignore[dict-item]
        ({"observed": {"logprobs_mode": "scaled"}}, "logprobs_mode"),
    ],
)
def test_comparison_is_refused_with_the_field(change: dict[str, object], field: str) -> None:
    a, b = Run(Path("a"), BASE), Run(Path("b"), {**BASE, **change})
    assert (incomparable(a, b) or "").startswith(field)
    assert incomparable(a, Run(Path("c"), {**BASE, "repeat": 1})) is None


def test_a_study_refuses_runs_that_do_not_belong_together(tmp_path: Path) -> None:
    for name, change in (("000-a", {}), ("001-b", {"run_id": "b", "model_fingerprint": "n"})):
        writer = RunWriter(tmp_path / "runs" / name)
        writer.start({**BASE, **change})
    with pytest.raises(StudyError, match="model_fingerprint: m against n"):
        load_study([tmp_path])
    with pytest.raises(StudyError, match="no run folder"):
        load_study([tmp_path / "runs" / "000-a" / "parts"])
    assert len(run_folders(tmp_path)) == 2


def test_a_backend_that_breaks_its_contract_is_found() -> None:
    wave = [Request("a", (1,)), Request("b", (2,))]
    good = [response("a"), response("b")]
    check_responses(wave, good, K)
    with pytest.raises(ValueError, match="answered"):
        check_responses(wave, good[::-1], K)
    with pytest.raises(ValueError, match="answered"):
        check_responses(wave, good[:1], K)
    with pytest.raises(ValueError, match="shapes"):
        check_responses(wave, [good[0], replace(good[1], logprobs=good[1].logprobs[:-1])], K)
    with pytest.raises(ValueError, match="shapes"):
        check_responses(wave, good, K + 1)


def test_a_workload_survives_json() -> None:
    work = workload(3)
    assert workload_from(json.loads(json.dumps(work.to_dict()))) == work


def test_seeds_depend_on_item_and_sample_alone() -> None:
    seeds = {item_seed(1, item, sample) for item in "abc" for sample in range(3)}
    assert len(seeds) == 9
    assert item_seed(1, "a", 0) == item_seed(1, "a", 0) != item_seed(2, "a", 0)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_reasons_are_one_line() -> None:
    assert reason_of(MemoryError("no\nmore")) == "out of memory: no"
    assert reason_of(ValueError()) == "ValueError"


def test_digest_ignores_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})


def test_tables_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_table(path, pa.table({"x": [1]}))
    before = path.read_bytes()
    with pytest.raises((TypeError, AttributeError)):
        write_table(path, None)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def test_other_words_for_the_same_model_or_threads_are_no_factor(tmp_path: Path) -> None:
    asked = [
        {"batch_size": 1, "model": "local:old/place", "threads": None, "device": "auto"},
        {"batch_size": 2, "model": "local:new/place", "threads": 2, "device": "cpu"},
    ]
    resolved = {"model": "fingerprint", "threads": 2, "device": "cpu"}
    for factors in asked:
        write_run(tmp_path, factors, [Row([1, 2], [-0.5, -0.5])], resolved=resolved)
    assert load_study([tmp_path]).factors == ("batch_size",)
    other = {**asked[0], "batch_size": 2, "threads": 4}
    write_run(tmp_path, other, [Row([1, 2], [-0.5, -0.5])], resolved={**resolved, "threads": 4})
    assert load_study([tmp_path]).factors == ("batch_size", "threads")
