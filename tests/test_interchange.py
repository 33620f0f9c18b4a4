"""Files of other tools become run folders, and run folders become files of other tools."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nondet.interchange import (
    ForeignResponse,
    ForeignRun,
    InterchangeError,
    export_inspect,
    export_lm_eval,
    read_jsonl,
    read_lm_eval,
    read_paper,
    write_foreign,
)
from nondet.interchange.__main__ import main
from nondet.interchange.items import items_of
from nondet.report import write_report
from nondet.study import Study, load_study
from tests.factory import make_study

EMITTED = [[11, 12, 2], [21, 22, 23, 24]]


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def paper_folder(tmp_path: Path) -> Path:
    """Two problems as the paper's code leaves them; the second is cut at four tokens."""
    torch = pytest.importorskip("torch")
    folder = tmp_path / "outputs" / "vllm_main" / "l40s" / "org" / "model"
    folder.mkdir(parents=True)
    for problem, tokens in enumerate(EMITTED):
        ids = torch.tensor([[token + rank for rank in range(5)] for token in tokens])
        logprobs = -torch.arange(1, 6, dtype=torch.float32).repeat(len(tokens), 1) / 10
        for kind, tensor in (("token_ids", ids), ("logprobs", logprobs)):
            name = f"problem_{problem}_math500_{kind}_bs_8_bfloat16_max_tokens_4.pt"
            torch.save(tensor, folder / name)
    rows = [
        {"problem_id": 0, "question": [{"role": "user", "content": "q0"}], "model_answer": "old"},
        {"problem_id": 1, "question": [{"role": "user", "content": "q1"}], "model_answer": "b"},
        {"problem_id": 0, "question": [{"role": "user", "content": "q0"}], "model_answer": "a"},
    ]
    write_lines(folder / "qa_pairs_bfloat16_bs_8.jsonl", rows)
    return folder


def only(study: Study) -> dict[str, Any]:
    return study.runs[0].table().to_pydict()


def test_paper_layout(paper_folder: Path, tmp_path: Path) -> None:
    (run,) = read_paper(paper_folder, {"gpus": 2, "gpu": "L40S"})
    write_foreign(run, tmp_path / "study")
    study = load_study([tmp_path / "study"])
    factors = study.runs[0].factors
    assert (factors["batch_size"], factors["dtype"], factors["gpus"]) == (8, "bf16", 2)
    assert (factors["model"], factors["gpu"]) == ("org/model", "L40S")
    rows = only(study)
    assert rows["item_id"] == ["math500/0", "math500/1"]
    assert rows["tokens"] == EMITTED
    assert rows["text"] == ["a", "b"]  # of the doubled line the last one
    assert rows["finish_reason"] == ["stop", "length"]
    assert np.allclose(rows["logprobs"][0], -0.1)
    assert rows["top_ids"][1][5:10] == [22, 23, 24, 25, 26]
    assert np.allclose(rows["top_logprobs"][0][:5], [-0.1, -0.2, -0.3, -0.4, -0.5])
    assert study.runs[0].record["observed"]["token_unit"] == "tokens"


def test_scaled_logprobs_of_layercast_are_left_out(paper_folder: Path, tmp_path: Path) -> None:
    (run,) = read_paper(paper_folder, layercast=True)
    write_foreign(run, tmp_path / "study")
    rows = only(load_study([tmp_path / "study"]))
    assert rows["tokens"] == EMITTED
    assert np.isnan(rows["logprobs"][0]).all()
    assert rows["top_ids"][0] == [-1] * 15


def test_paper_layout_with_a_hole(paper_folder: Path) -> None:
    missing = paper_folder / "problem_1_math500_logprobs_bs_8_bfloat16_max_tokens_4.pt"
    missing.write_bytes(b"no tensor")
    with pytest.raises(InterchangeError, match="no tensor"):
        list(read_paper(paper_folder))
    write_lines(paper_folder / "qa_pairs_bfloat16_bs_8.jsonl", [{"problem_id": 1}])
    with pytest.raises(InterchangeError, match="problem 0 has tensors but no answer"):
        list(read_paper(paper_folder))


def test_a_pickle_with_code_is_not_run(paper_folder: Path, tmp_path: Path) -> None:
    import torch

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path = paper_folder / "problem_0_math500_token_ids_bs_8_bfloat16_max_tokens_4.pt"
    torch.save(Harm(), path)
    with pytest.raises(InterchangeError, match="no tensor"):
        list(read_paper(paper_folder))
    assert not (tmp_path / "ran").exists()


def test_jsonl_counts_characters_where_there_are_no_tokens(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "response": "It is 4.", "prompt": "2+2", "correct": 1, "answer": 4},
        {"item_id": "b", "text": "", "prompt": "?", "finish_reason": "length"},
    ]
    path = write_lines(tmp_path / "one.jsonl", rows)
    write_foreign(read_jsonl(path, {"batch_size": 1}), tmp_path / "study")
    study = load_study([tmp_path / "study"])
    got = only(study)
    assert got["tokens"] == [[ord(char) for char in "It is 4."], []]
    assert got["correct"] == [1, None]
    assert got["answer"] == ["4", None]
    assert study.runs[0].record["observed"]["token_unit"] == "characters"
    assert study.runs[0].record["generated_tokens"] == 8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[]", "line 2: must be a JSON object"),
        ('{"id": "x"}', "line 2: must have item_id"),
        ('{"id": "x", "text": "t", "correct": 3}', "line 2: correct=3"),
        ('{"id": "x", "text": "t", "finish_reason": "eos"}', "line 2: finish_reason=eos"),
        ('{"id": "x", "text": "t", "tokens": ["a"]}', "line 2: tokens must be"),
        ('{"id": "x", "text": "t", "tokens": [1]}', "tokens must be in every line or in none"),
        ('{"id": "a", "text": "t"}', "item a twice"),
    ],
)
def test_bad_lines_are_one_line_and_exit_2(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "text": "t"}\n' + line + "\n")
    command = ["import", "jsonl", str(path), "--study", str(tmp_path / "study")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "study").exists()


def test_logprobs_of_another_length_are_refused(tmp_path: Path) -> None:
    response = ForeignResponse("a", "t", tokens=[1, 2], logprobs=[-0.1])
    with pytest.raises(InterchangeError, match="1 logprobs"):
        write_foreign(ForeignRun("s", "m", "t", [response]), tmp_path / "study")


def test_several_files_are_the_settings_of_one_study(tmp_path: Path) -> None:
    for name, text in (("one", "same"), ("two", "sane")):
        write_lines(tmp_path / f"{name}.jsonl", [{"id": "a", "text": text, "prompt": "p"}])
    files = [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]
    assert main(["import", "jsonl", *files, "--study", str(tmp_path / "study")]) == 0
    study = load_study([tmp_path / "study"])
    assert [study.label(run) for run in study.runs] == ["one", "two"]


def test_lm_eval_samples_are_read(tmp_path: Path) -> None:
    row = {"doc_id": 7, "resps": [["The answer is 4"]], "filtered_resps": ["4"], "target": "4"}
    rows = [
        {**row, "filter": "strict-match", "exact_match": 1.0, "prompt_hash": "h"},
        {**row, "filter": "flexible-extract", "exact_match": 0.0, "prompt_hash": "h"},
    ]
    path = write_lines(tmp_path / "samples_gsm8k_2026-01-02T03-04-05.123456.jsonl", rows)
    run = read_lm_eval(path, {})
    assert run.task == "gsm8k"
    (response,) = run.responses
    assert (response.item_id, response.answer, response.correct) == ("7", "4", 1)
    assert response.text == "The answer is 4"


def test_lm_eval_round_trip(tmp_path: Path) -> None:
    study = make_study(tmp_path / "ours", items=5)
    run = study.complete[0]
    results, samples = export_lm_eval(run, tmp_path / "out")
    back = read_lm_eval(samples, {})
    stored = run.table().to_pydict()
    assert [response.text for response in back.responses] == stored["text"]
    assert [response.correct for response in back.responses] == stored["correct"]
    assert [response.answer for response in back.responses] == stored["answer"]
    values = json.loads(results.read_text())["results"]["synthetic"]
    assert values["exact_match,none"] == pytest.approx(np.mean(stored["correct"]))
    spread = np.std(stored["correct"], ddof=1) / np.sqrt(5)
    assert values["exact_match_stderr,none"] == pytest.approx(spread)


def test_inspect_log(tmp_path: Path) -> None:
    study = make_study(tmp_path / "ours", items=4, limit=20, tokens=20)
    run = study.complete[1]
    (path,) = export_inspect(run, tmp_path / "out")
    log = json.loads(path.read_text())
    stored = run.table().to_pydict()
    assert (log["version"], log["status"]) == (2, "success")
    assert [sample["id"] for sample in log["samples"]] == stored["item_id"]
    values = [sample["scores"]["nondet"]["value"] for sample in log["samples"]]
    assert values == ["C" if right else "I" for right in stored["correct"]]
    reasons = [s["output"]["choices"][0]["stop_reason"] for s in log["samples"]]
    cut = [reason == "length" for reason in stored["finish_reason"]]
    assert [reason == "max_tokens" for reason in reasons] == cut
    usage = next(iter(log["stats"]["model_usage"].values()))
    assert usage["output_tokens"] == sum(map(len, stored["tokens"]))


def test_export_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_study(tmp_path / "ours", items=2)
    out = tmp_path / "out"
    assert main(["export", "inspect", str(tmp_path / "ours"), "--out", str(out)]) == 0
    assert len(list(out.glob("*/*.json"))) == len(study.complete)
    assert main(["export", "lm-eval", str(tmp_path), "--out", str(out)]) == 2
    assert "no run folder" in capsys.readouterr().err


STORED = Path(__file__).parent / "data" / "study"


def test_exports_hold_prompts_where_the_task_is_still_the_same(tmp_path: Path) -> None:
    run = load_study([STORED]).complete[0]
    items = items_of(run)
    if not items:
        pytest.skip("the shipped task has changed since the small study was stored")
    assert set(run.item_ids) <= set(items)
    _, samples = export_lm_eval(run, tmp_path / "lm")
    line = json.loads(samples.read_text().splitlines()[0])
    first = items[run.item_ids[0]]
    assert line["arguments"]["gen_args_0"]["arg_0"] == first.prompt
    assert line["target"] == first.answer
    (log,) = export_inspect(run, tmp_path / "inspect")
    sample = json.loads(log.read_text())["samples"][0]
    assert (sample["input"], sample["target"]) == (first.prompt, first.answer)


def test_a_changed_task_gives_no_prompts(tmp_path: Path) -> None:
    run = load_study([STORED]).complete[0]
    changed = dataclasses.replace(run, record={**run.record, "task_fingerprint": "other"})
    assert items_of(changed) == {}
    unknown = {"setting": {"name": "no such task"}}
    assert items_of(dataclasses.replace(run, record={**run.record, "task": unknown})) == {}


def test_imported_texts_get_a_report_that_counts_characters(tmp_path: Path) -> None:
    texts = {"one": ["It is 4.", "No."], "two": ["It is 5.", "No."]}
    for name, answers in texts.items():
        rows = [
            {"id": f"q{place}", "text": text, "prompt": place, "correct": place}
            for place, text in enumerate(answers)
        ]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    files = [str(tmp_path / f"{name}.jsonl") for name in texts]
    study = tmp_path / "study"
    assert main(["import", "jsonl", *files, "--study", str(study)]) == 0
    result = write_report([study], study / "report")
    table = result.summary.set_index("label")
    assert table["diverged"].tolist() == [0, 1]
    text = result.page.read_text()
    assert "positions and lengths count characters" in text
    assert "Answers part, but no log-probabilities are stored" in text
    curve = pd.read_csv(study / "report" / "figures" / "survival.csv")
    assert set(curve["position"]) >= {6}  # "It is 4." and "It is 5." part at character 6


def test_the_papers_tensors_get_a_report(paper_folder: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    study = tmp_path / "study"
    command = ["import", "paper", str(paper_folder), "--study", str(study), "--set", "gpus=2"]
    assert main(command) == 0
    path = paper_folder / "problem_0_math500_token_ids_bs_8_bfloat16_max_tokens_4.pt"
    ids = torch.load(path)
    ids[1, :2] = ids[1, [1, 0]]
    torch.save(ids, path)
    assert main([*command[:-1], "gpus=4"]) == 0
    summary = write_report([study], study / "report").summary
    assert summary.set_index("gpus")["diverged"].to_dict() == {2: 0, 4: 1}
    forks = pd.read_csv(study / "report" / "figures" / "fork_gap.csv")
    assert forks["position"].tolist() == [1]
    assert np.isclose(forks["gap"], 0.1).all()
