"""A run made by another tool, and how it becomes a run folder of a study."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nondet.runs import TOKENS_SCHEMA, RunWriter, digest, write_json
from nondet.settings import Scalar, Setting

# Where a tool kept text only, characters stand for tokens: the place of a fork is still exact,
# but it counts characters.
CHARACTERS = "characters"
TOKENS = "tokens"


class InterchangeError(ValueError):
    """A file that cannot be read as what it was said to be; one line."""


@dataclass(frozen=True)
class ForeignResponse:
    """One response; T tokens, K candidates.

    prompt: what was asked, in any JSON form; only its hash is kept. tokens: None where the tool
    kept text only. logprobs (T,), top_ids and top_logprobs (T, K) row by row; empty where the
    tool kept none. correct: 1, 0 or None.
    """

    item_id: str
    text: str
    prompt: Any = None
    tokens: Sequence[int] | None = None
    logprobs: Sequence[float] = ()
    top_ids: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()
    finish_reason: str = "stop"
    answer: str | None = None
    correct: int | None = None
    sample: int = 0


@dataclass(frozen=True)
class ForeignRun:
    """All responses of one setting, with what the tool said about it."""

    source: str
    model: str
    task: str
    responses: Sequence[ForeignResponse]
    factors: Mapping[str, Scalar] = field(default_factory=dict)
    top_k: int = 1
    started: str | None = None
    notes: Sequence[str] = ()


def write_foreign(run: ForeignRun, study: Path, repeat: int = 0) -> str:
    """Write a run into ``study``/runs and enter it in study.json. Returns its id.

    Factors that the tool did not say are null. Raises InterchangeError for a run without
    responses, for an item twice, and for tokens beside logprobs of another length.
    """
    keys = [(response.item_id, response.sample) for response in run.responses]
    if not keys:
        raise InterchangeError(f"{run.source}: no response in it")
    if len(set(keys)) != len(keys):
        double = next(key for key in keys if keys.count(key) > 1)
        raise InterchangeError(f"{run.source}: item {double[0]} twice")
    record = _record(run, repeat)
    writer = RunWriter(study / "runs" / record["run_id"])
    writer.start({**record, "status": "partial"})
    writer.finish(response_table(run))
    writer.record(record)
    listed = study / "study.json"
    old: dict[str, Any] = {"name": study.name, "seed": 0}
    if listed.exists():
        old = json.loads(listed.read_text())
    known: list[str] = list(old.get("runs") or [])
    ids = list(dict.fromkeys([*known, record["run_id"]]))
    write_json(listed, {**old, "runs": ids})
    return str(record["run_id"])


def _record(run: ForeignRun, repeat: int) -> dict[str, Any]:
    factors = _factors(run)
    prompts = [[r.item_id, r.sample, digest(r.prompt)] for r in run.responses]
    unit = CHARACTERS if any(r.tokens is None for r in run.responses) else TOKENS
    tokens = [[r.item_id, r.sample, list(r.tokens or ()), r.text] for r in run.responses]
    count = sum(len(r.text if r.tokens is None else r.tokens) for r in run.responses)
    observed = {"imported_from": run.source, "token_unit": unit, "notes": list(run.notes)}
    return {
        "run_id": digest([factors, run.model, prompts, repeat, digest(tokens)]),
        "status": "complete",
        "reason": None,
        "repeat": repeat,
        "factors": factors,
        "requested": {},
        "resolved": {},
        "observed": observed,
        "model_fingerprint": digest(["imported", run.model]),
        "prompts_fingerprint": digest(prompts),
        "task_fingerprint": digest([run.task, prompts]),
        "task": {"name": run.task, "items": len(prompts), "marker": "imported"},
        "started": run.started,
        "ended": None,
        "resumed_at": [],
        "wall_s": None,
        "generated_tokens": count,
        "tokens_per_s": None,
        "peak_memory_mb": None,
        "peak_device_memory_mb": None,
        "environment": {},
    }


def _factors(run: ForeignRun) -> dict[str, Scalar]:
    names = [item.name for item in fields(Setting)]
    known = [name for name in names if name not in ("repeat", "timeout_s")]
    factors: dict[str, Scalar] = dict.fromkeys(known)
    factors.update({"backend": "imported", "model": run.model, "task": run.task})
    return {**factors, **run.factors, "top_k": run.top_k}


def response_table(run: ForeignRun) -> pa.Table:
    """The rows of tokens.parquet. Missing logprobs are NaN, missing candidates id -1."""
    rows = [_row(run, response) for response in run.responses]
    return pa.Table.from_pylist(rows, schema=TOKENS_SCHEMA)


def _row(run: ForeignRun, response: ForeignResponse) -> dict[str, Any]:
    tokens = response.tokens
    ids = [ord(char) for char in response.text] if tokens is None else [int(t) for t in tokens]
    length = len(ids)
    logprobs = _filled(response.logprobs, length, np.nan)
    top_ids = _filled(response.top_ids, length * run.top_k, -1)
    tops = _filled(response.top_logprobs, length * run.top_k, np.nan)
    if len(logprobs) != length or not len(top_ids) == len(tops) == length * run.top_k:
        got = f"{len(logprobs)} logprobs and {len(top_ids)} candidates for {length} tokens"
        raise InterchangeError(f"{run.source}: item {response.item_id} has {got}")
    return {
        "item_id": response.item_id,
        "sample": response.sample,
        "prompt_hash": digest(response.prompt),
        "prompt_tokens": 0,
        "tokens": ids,
        "finish_reason": response.finish_reason,
        "text": response.text,
        "logprobs": logprobs,
        "top_ids": top_ids,
        "top_logprobs": tops,
        "wave": 0,
        "answer": response.answer,
        "outcome": {1: "right", 0: "wrong"}.get(
            -1 if response.correct is None else response.correct
        ),
        "correct": response.correct,
        "marking_note": "",
    }


def _filled(values: Sequence[Any], length: int, missing: float) -> list[Any]:
    return list(values) if len(values) else [missing] * length


def read_lines(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and objects of a JSONL file. Raises InterchangeError with the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InterchangeError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InterchangeError(f"{path}, line {number}: no JSON ({error.msg})") from error
        if not isinstance(value, dict):
            raise InterchangeError(f"{path}, line {number}: must be a JSON object")
        yield number, value
