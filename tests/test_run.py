"""The command: bad input is one line and writes nothing; failures are recorded; runs are reused."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import toy

from nondet.run import in_order
from nondet.runs import read_run
from nondet.study import load_study

BAD = {
    "backend": (["backend=nothing"], "Could not find 'backend/nothing'"),
    "model group": (["model=nothing"], "Could not find 'model/nothing'"),
    "task group": (["task=nothing"], "Could not find 'task/nothing'"),
    "no such factor": (["bach_size=3"], "bach_size"),
    "batch size 0": (["batch_size=0"], "batch_size=0: must be a whole number of at least 1"),
    "batch size negative": (["batch_size=-1"], "batch_size=-1"),
    "batch size text": (["batch_size=many"], "batch_size=many"),
    "one bad of many": (["batch_size=1,2,0", "-m"], "batch_size=0"),
    "dtype": (["dtype=bf17"], "dtype=bf17: must be one of"),
    "no GPU": (["device=cuda"], "device=cuda: must be cpu or auto"),
    "repeats": (["repeats=-1"], "repeats=-1"),
    "missing model": (["model=local", "model.path=/no/such/model"], "model.path=/no/such/model"),
    "missing task": (["task.path=/no/such.jsonl"], "/no/such.jsonl"),
    "outputs": (["outputs=/proc/nothing"], "outputs=/proc/nothing: must be a folder"),
    "backend option": (["+backend.speed=9"], "backend.speed=9"),
    "report": (["report=no"], "report=no: must be true or false"),
    "no study": (["study=null"], "study=None: must be a name"),
    "empty outputs": (['outputs=""'], "outputs=: must be a name"),
    "other seeds": (["seed=1,2", "-m"], "seed=2: must be the same in all settings"),
    "other lengths": (["max_new_tokens=4,8", "-m"], "max_new_tokens=8: must be the same"),
    "other prompts": (["task.limit=1,2", "-m"], "task=jsonl: must be of prompts that are the same"),
    "list as path": (["task.path=[a]"], "task.path=['a']: must be a text"),
    "group set to null": (["backend=null"], "Config group override must be a string"),
    "no key": (["=3"], "Config group override must be a string"),
    "no such flag": (["--wave"], "unrecognized arguments: --wave; must be KEY=VALUE"),
    "bad values behind -m": (["-m", "batch_size=2,0"], "batch_size=0"),
    "address": (["backend=openai", "backend.url=nonsense"], "backend.url=nonsense: must be an a"),
    "interpreter": (["backend.python=/no/python"], "backend.python=/no/python"),
}


@pytest.mark.parametrize("words", BAD, ids=str)
def test_bad_input_is_one_line_exit_2_nothing_written(words: str, tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 3)
    asked, message = BAD[words]
    done = toy.run(tmp_path, *asked)
    lines = done.stderr.strip().splitlines()
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert message in lines[0]
    assert os.listdir(tmp_path) == ["items.jsonl"]


BAD_TASKS = {
    "empty": ("", "items.jsonl"),
    "no JSON in line 2": ('{"prompt": "a"}\n{"prompt": \n', "2"),
    "no prompt": ('{"prompt": "a"}\n{"id": "x"}\n', "prompt"),
    "lone surrogate in a prompt": ('{"prompt": "a\\ud800"}\n', "UTF-8"),
    "lone surrogate in an id": ('{"id": "\\udc80", "prompt": "a"}\n', "UTF-8"),
    "empty prompt": ('{"prompt": ""}\n', "prompt"),
}


@pytest.mark.parametrize("name", BAD_TASKS, ids=str)
def test_bad_tasks_are_refused(name: str, tmp_path: Path) -> None:
    text, message = BAD_TASKS[name]
    (tmp_path / "items.jsonl").write_text(text)
    done = toy.run(tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert os.listdir(tmp_path) == ["items.jsonl"]


def test_a_prompt_longer_than_the_context_names_its_item(tiny: Path, tmp_path: Path) -> None:
    rows = [{"id": "short", "prompt": "a"}, {"id": "long", "prompt": "b" * 600}]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = toy.run(tmp_path, "model=local", f"model.path={tiny}", backend="hf")
    assert done.returncode == 2, done.stderr
    assert "task.items=long: must be within the model's context of 512 tokens" in done.stderr
    assert os.listdir(tmp_path) == ["items.jsonl"]


FAULTS = {
    "memory": "out of memory: the toy ran out of memory",
    "error": "RuntimeError: the toy broke",
    "exit": "the worker ended without a word, exit code 3; log: toy engine started",
    "killed": "worker killed by SIGKILL",
    "hang": "time limit: not done after 30 s",
    "wrong_items": "ValueError: backend answered",
    "shapes": "ValueError: item i002: ",
}


def test_why_a_response_is_an_error_is_kept_and_said(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 6)
    words = ["backend.fault=cut", "backend.fault_size=1", "batch_size=1,2", "-m"]
    done = toy.run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    study = load_study([tmp_path / "outputs" / "latest"])
    cut, whole = sorted(study.complete, key=lambda run: run.factors["batch_size"])
    assert cut.record["notes"] == {"count": 1, "first": [["i002", "cut by the toy"]]}
    assert "notes" not in whole.record
    page = (tmp_path / "outputs" / "latest" / "report" / "index.html").read_text()
    assert "the engine had a word on a response, i002: cut by the toy." in page


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_run_is_recorded_and_the_sweep_goes_on(fault: str, tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 8)
    words = [f"backend.fault={fault}", "backend.fault_size=1", "report=false"]
    # Both runs have this long to come up and to answer.
    limit = ["timeout_s=30"] if fault == "hang" else []
    done = toy.run(tmp_path, "batch_size=1,2", *words, *limit, "-m")
    assert done.returncode == 1, done.stderr
    study = load_study([tmp_path / "outputs" / "latest"])
    assert [run.status for run in study.runs] == ["failed", "complete"]
    assert study.failed[0].record["reason"].startswith(FAULTS[fault])
    # The waves before the fault are kept.
    assert len(list((study.failed[0].folder / "parts").iterdir())) == 2
    assert study.complete[0].table().num_rows == 8


def test_forty_runs_with_one_failed_show_the_gap_in_the_report(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 30)
    sizes = ",".join(str(size) for size in range(1, 41))
    words = ["backend.fault=memory", "backend.fault_size=7", "backend.drift=true"]
    done = toy.run(tmp_path, f"batch_size={sizes}", *words, "-m")
    assert done.returncode == 1, done.stderr[-2000:]
    report = tmp_path / "outputs" / "latest" / "report"
    summary = pd.read_csv(report / "summary.csv")
    assert len(summary) == 40
    assert (summary.status == "failed").sum() == 1
    failed = summary[summary.status == "failed"].iloc[0]
    assert failed.batch_size == 7
    assert "out of memory" in failed.reason
    assert "out of memory" in (report / "index.html").read_text()


def test_the_same_command_again_skips_and_says_so(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 5)
    words = ["batch_size=1,2", "repeats=1", f"backend.log={tmp_path}/waves", "report=false", "-m"]
    first = toy.run(tmp_path, *words)
    assert first.returncode == 0, first.stderr
    generated = (tmp_path / "waves").read_text()
    assert len(generated.split()) == 15  # two settings and one repeat, five items each
    again = toy.run(tmp_path, *words)
    assert again.returncode == 0
    assert again.stderr.count("skipped, this run is already there") == 3
    assert (tmp_path / "waves").read_text() == generated
    study = load_study([tmp_path / "outputs" / "latest"])
    assert [(run.factors["batch_size"], run.repeat) for run in study.runs] == [
        (1, 0),
        (1, 1),
        (2, 0),
    ]


def test_changed_answers_are_marked_again_without_generating(tmp_path: Path) -> None:
    items = toy.write_items(tmp_path / "items.jsonl", 4)
    words = [f"backend.log={tmp_path}/waves", "report=false"]
    assert toy.run(tmp_path, *words).returncode == 0
    generated = (tmp_path / "waves").read_text()
    run = load_study([tmp_path / "outputs" / "latest"]).runs[0]
    before = run.record["task_fingerprint"]
    items.write_text(items.read_text().replace('"answer": "2"', '"answer": "99"'))
    assert toy.run(tmp_path, *words).returncode == 0
    assert (tmp_path / "waves").read_text() == generated
    assert read_run(run.folder).record["task_fingerprint"] != before


def test_a_full_disk_ends_the_run_and_keeps_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files of this process and its children may not grow beyond 300 kB; the third wave needs more.
    toy.write_items(tmp_path / "items.jsonl", 40)
    asked = ["batch_size=8", "max_new_tokens=8000", "report=false"]
    done = _limited(lambda: toy.run(tmp_path, *asked), 200_000)
    assert done.returncode == 1, done.stderr[-2000:]  # type: ignore[attr-defined]
    run = load_study([tmp_path / "outputs" / "latest"]).runs[0]
    assert run.status == "failed"
    assert "File too large" in run.record["reason"]
    assert not list(run.folder.glob(".*"))


def _limited(work: Callable[[], object], size: int) -> object:
    """Run ``work`` with a limit on file sizes; SIGXFSZ ignored, so that writing fails instead."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        return work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_help_lists_our_groups_and_cfg_prints_the_setting(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 1)
    helped = toy.run(tmp_path, "--help")
    assert helped.returncode == 0
    for word in ("backend: hf", "sweep: ", "batchsize", "task: ", "Exit codes"):
        assert word in helped.stdout, helped.stdout
    shown = toy.run(tmp_path, "batch_size=3", "--cfg", "job")
    assert "batch_size: 3" in shown.stdout
    assert os.listdir(tmp_path) == ["items.jsonl"]


def test_a_real_model_end_to_end(tiny: Path, tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 6)
    model = ["model=local", f"model.path={tiny}", "max_new_tokens=8", "threads=1"]
    done = toy.run(tmp_path, *model, "+sweep=batchsize", "batch_size=1,3", backend="hf")
    assert done.returncode == 0, done.stderr
    report = tmp_path / "outputs" / "latest" / "report"
    summary = pd.read_csv(report / "summary.csv")
    assert len(summary) == 5
    assert summary["repeat_identical"].dropna().astype(bool).all()
    verdict = json.loads((report / "study.json").read_text())["verdict"]
    differ = bool((pd.read_csv(report / "pairs.csv").diverged > 0).any())
    assert verdict == ("DIFFERENT" if differ else "INCONCLUSIVE")  # six items are too few to pass
    run = load_study([tmp_path / "outputs" / "latest"]).runs[0]
    assert run.record["environment"]["versions"]["torch"]
    assert run.record["observed"]["parameter_dtypes"] == ["bfloat16"]
    assert run.record["resolved"]["device"] == "cpu"
    assert sorted(path.name for path in run.folder.iterdir()) == ["run.json", "tokens.parquet"]


def test_studies_begun_in_one_second_do_not_share_a_folder(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 2)
    begun = [toy.start(tmp_path, f"batch_size={size}", "report=false") for size in range(1, 7)]
    assert [process.wait() for process in begun] == [0] * 6
    studies = list((tmp_path / "outputs" / "study").iterdir())
    assert [len(list((study / "runs").iterdir())) for study in studies] == [1] * 6


def test_an_engine_that_crashes_after_its_last_answer_has_done_its_run(tmp_path: Path) -> None:
    toy.write_items(tmp_path / "items.jsonl", 3)
    done = toy.run(tmp_path, "backend.fault=teardown", "report=false")
    assert done.returncode == 0, done.stderr
    run = load_study([tmp_path / "outputs" / "latest"]).runs[0]
    assert run.status == "complete"
    assert run.record["worker_exit"] == -signal.SIGSEGV
    assert run.table().num_rows == 3


def test_minus_m_may_stand_anywhere() -> None:
    assert in_order(["a=1,2", "-m", "b=3"]) == ["--multirun", "a=1,2", "b=3"]
    assert in_order(["+sweep=kernels", "a=1,2"]) == ["--multirun", "+sweep=kernels", "a=1,2"]
    assert in_order(["--multirun", "a=1"]) == ["--multirun", "a=1"]
    assert in_order(["a=1", "--cfg", "job"]) == ["a=1", "--cfg", "job"]
