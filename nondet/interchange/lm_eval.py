"""Files of lm-evaluation-harness: ``samples_<task>_<date>.jsonl`` read and written, and
``results_<date>.json`` written beside it.

The harness keeps text only, so imported positions count characters. Of a task with several
filters the first one is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from nondet.interchange.base import ForeignResponse, ForeignRun, InterchangeError, read_lines
from nondet.interchange.items import items_of
from nondet.runs import Run
from nondet.settings import Scalar
from nondet.tasks import Item

# Metrics of the harness that are right or wrong for a single sample, the usual ones first.
METRICS = ("exact_match", "acc", "math_verify", "pass@1", "acc_norm", "em")
SAMPLES = re.compile(r"samples_(?P<task>.+)_\d{4}-\d\d-\d\dT[\d.:-]+\.jsonl")


def read_lm_eval(
    path: Path, factors: Mapping[str, Scalar], model: str = "unnamed", metric: str | None = None
) -> ForeignRun:
    """One run from one samples file; ``metric`` says which value is right or wrong.

    Raises InterchangeError with the line that cannot be read.
    """
    match = SAMPLES.fullmatch(path.name)
    responses = []
    chosen: str | None = None
    for number, entry in read_lines(path):
        if "doc_id" not in entry or not isinstance(entry.get("resps"), list):
            raise InterchangeError(f"{path}, line {number}: must have doc_id and resps")
        chosen = chosen or entry.get("filter")
        if entry.get("filter") == chosen:
            responses += _responses(path, number, entry, metric)
    task = match["task"] if match else path.stem
    return ForeignRun(path.name, model, task, responses, factors)


def _responses(
    path: Path, number: int, entry: Mapping[str, Any], metric: str | None
) -> list[ForeignResponse]:
    texts = entry["resps"]
    while len(texts) == 1 and isinstance(texts[0], list):
        texts = texts[0]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InterchangeError(f"{path}, line {number}: resps must be texts (a generation task)")
    filtered = entry.get("filtered_resps") or []
    answers = filtered if len(filtered) == len(texts) else [None] * len(texts)
    correct = _correct(entry, metric) if len(texts) == 1 else None
    return [
        ForeignResponse(
            item_id=str(entry["doc_id"]),
            text=text,
            prompt=entry.get("prompt_hash") or entry.get("arguments"),
            answer=answer if isinstance(answer, str) else None,
            correct=correct,
            sample=sample,
        )
        for sample, (text, answer) in enumerate(zip(texts, answers, strict=True))
    ]


def _correct(entry: Mapping[str, Any], metric: str | None) -> int | None:
    for name in (metric,) if metric else METRICS:
        value = entry.get(name or "")
        if isinstance(value, bool | int | float) and value in (0, 1):
            return int(value)
    return None


def export_lm_eval(run: Run, folder: Path) -> list[Path]:
    """Write a complete run as samples and results files. Returns their paths."""
    task = str((run.record.get("task") or {}).get("name", "task"))
    date = re.sub(r"\+.*$", "", str(run.record.get("started") or "1970-01-01T00:00:00"))
    stamp = date.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    names = ["item_id", "sample", "text", "answer", "correct", "prompt_hash"]
    rows = run.table(names).to_pylist()
    samples = folder / f"samples_{task}_{stamp}.jsonl"
    items = items_of(run)
    lines = [_sample_line(place, row, items.get(row["item_id"])) for place, row in enumerate(rows)]
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = folder / f"results_{stamp}.json"
    results.write_text(json.dumps(_results(run, task, date, rows), indent=2) + "\n")
    return [results, samples]


def _sample_line(place: int, row: Mapping[str, Any], item: Item | None) -> dict[str, Any]:
    answer = row["answer"] if row["answer"] is not None else row["text"]
    line = {
        "doc_id": place,
        "doc": {"id": row["item_id"], "sample": row["sample"]},
        "target": (item.answer or "") if item else "",
        "arguments": {"gen_args_0": {"arg_0": item.prompt}} if item else {},
        "resps": [[row["text"]]],
        "filtered_resps": [answer],
        "filter": "none",
        "metrics": ["exact_match"],
        "doc_hash": row["prompt_hash"],
        "prompt_hash": row["prompt_hash"],
        "target_hash": "",
    }
    if row["correct"] is not None:
        line["exact_match"] = float(row["correct"])
    return line


def _results(run: Run, task: str, date: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    marked = [row["correct"] for row in rows if row["correct"] is not None]
    count = len(marked)
    share = sum(marked) / count if count else None
    error: float | str = "N/A"
    if share is not None and count > 1:
        error = sqrt(share * (1 - share) / (count - 1))
    factors = run.factors
    values = {"alias": task, "exact_match,none": share, "exact_match_stderr,none": error}
    return {
        "results": {task: values},
        "group_subtasks": {task: []},
        "configs": {task: {"task": task, "metadata": {"nondet_run": run.id}}},
        "versions": {task: run.record.get("task_fingerprint")},
        "n-shot": {task: 0},
        "higher_is_better": {task: {"exact_match": True}},
        "n-samples": {task: {"original": len(rows), "effective": len(rows)}},
        "config": {
            "model": str(factors.get("backend")),
            "model_args": {"pretrained": factors.get("model"), "dtype": factors.get("dtype")},
            "batch_size": factors.get("batch_size"),
            "device": factors.get("device"),
            "gen_kwargs": {"max_gen_toks": factors.get("max_new_tokens")},
            "random_seed": factors.get("seed"),
        },
        "git_hash": ((run.record.get("environment") or {}).get("git") or {}).get("commit"),
        "date": date,
    }
