"""Run folders as logs of inspect (EvalLog, JSON, schema version 2), for its viewer and reader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from nondet.interchange.items import items_of
from nondet.runs import Run
from nondet.tasks import Item

VERSION = 2
STOP_REASONS = {"stop": "stop", "length": "max_tokens", "error": "unknown"}
SCORER = "nondet"


def export_inspect(run: Run, folder: Path) -> list[Path]:
    """Write a complete run as ``<task>_<run id>.json``. Returns its path."""
    task = str((run.record.get("task") or {}).get("name", "task"))
    names = ["item_id", "sample", "text", "answer", "correct", "marking_note", "finish_reason"]
    table = run.table([*names, "prompt_hash", "prompt_tokens", "tokens"])
    rows = [{**row, "tokens": len(row["tokens"])} for row in table.to_pylist()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task}_{run.id}.json"
    path.write_text(json.dumps(_log(run, task, rows), indent=1, allow_nan=False) + "\n")
    return [path]


def _log(run: Run, task: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    record, factors = run.record, run.factors
    model = f"{factors.get('backend')}/{factors.get('model')}"
    created = str(record.get("started") or "1970-01-01T00:00:00+00:00")
    items = list(dict.fromkeys(row["item_id"] for row in rows))
    known = items_of(run)
    usage = {
        "input_tokens": sum(row["prompt_tokens"] for row in rows),
        "output_tokens": sum(row["tokens"] for row in rows),
    }
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "run_id": run.id,
            "eval_id": run.id,
            "task_id": run.id,
            "created": created,
            "task": task,
            "task_version": 0,
            "task_args": {},
            "dataset": {"name": task, "samples": len(items), "sample_ids": items},
            "model": model,
            "model_args": {key: value for key, value in factors.items() if value is not None},
            "config": {"epochs": int(factors.get("samples") or 1)},
            "packages": {},
            "metadata": {"task_fingerprint": record.get("task_fingerprint")},
        },
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": _results(rows),
        "stats": {
            "started_at": created,
            "completed_at": str(record.get("ended") or created),
            "model_usage": {model: usage},
        },
        "samples": [_sample(row, model, known.get(row["item_id"])) for row in rows],
    }


def _results(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    marked = [row["correct"] for row in rows if row["correct"] is not None]
    scores = []
    if marked:
        share, count = sum(marked) / len(marked), len(marked)
        error = sqrt(share * (1 - share) / (count - 1)) if count > 1 else 0.0
        metrics = {
            "accuracy": {"name": "accuracy", "value": share, "params": {}},
            "stderr": {"name": "stderr", "value": error, "params": {}},
        }
        scores.append({"name": SCORER, "scorer": SCORER, "params": {}, "metrics": metrics})
    return {"total_samples": len(rows), "completed_samples": len(rows), "scores": scores}


def _sample(row: Mapping[str, Any], model: str, item: Item | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": row["text"], "source": "generate"}
    asked = [{"role": "user", "content": item.prompt, "source": "input"}] if item else []
    scores: dict[str, Any] = {}
    if row["correct"] is not None:
        scores[SCORER] = {
            "value": "C" if row["correct"] else "I",
            "answer": row["answer"],
            "explanation": row["marking_note"] or None,
        }
    return {
        "id": row["item_id"],
        "epoch": row["sample"] + 1,
        "input": item.prompt if item else "",
        "target": (item.answer or "") if item else "",
        "messages": [*asked, message],
        "output": {
            "model": model,
            "choices": [
                {"message": message, "stop_reason": STOP_REASONS[row["finish_reason"]]},
            ],
            "completion": row["text"],
        },
        "scores": scores,
        "metadata": {"prompt_hash": row["prompt_hash"]},
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
    }
