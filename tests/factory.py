"""Synthetic studies on disk, in the schema of nondet/runs.py, for tests that need no model.

    study = make_study(tmp_path, settings=[{"batch_size": 1}, {"batch_size": 4}], diverge=[0, 0.5])

The first run answers every item with random tokens; every other run repeats its tokens up to a
random fork and then says something else, for the wanted share of items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nondet.runs import TOKENS_SCHEMA, RunWriter, digest, prompt_hash, write_json
from nondet.settings import Setting
from nondet.study import Study, load_study

TOP_K = 5
END = 2


@dataclass
class Row:
    """One response. ``logprobs`` are of the emitted tokens, (T,)."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: str = "stop"
    answer: str | None = "1"
    outcome: str = "right"
    correct: int | None = 1
    text: str | None = None
    # (T, TOP_K); made up from tokens and logprobs where not given.
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)


def _top(row: Row) -> tuple[list[int], list[float]]:
    if row.top_ids:
        flat = [value for values in row.top_logprobs for value in values]
        return [token for ids in row.top_ids for token in ids], flat
    if len(row.logprobs) != len(row.tokens):
        return [], []
    ids = [token + rank for token in row.tokens for rank in range(TOP_K)]
    falls = np.array([0, 0.1, 2, 3, 4])
    return ids, (np.repeat(row.logprobs, TOP_K) - np.tile(falls, len(row.tokens))).tolist()


def table_of(rows: Sequence[Row], samples: int = 1) -> pa.Table:
    """Rows of tokens.parquet; ``samples`` consecutive rows belong to one item."""
    tops = [_top(row) for row in rows]
    items = [place // samples for place in range(len(rows))]
    columns = {
        "item_id": [f"item-{item:04d}" for item in items],
        "sample": [place % samples for place in range(len(rows))],
        "prompt_hash": [prompt_hash([1, item]) for item in items],
        "prompt_tokens": [2] * len(rows),
        "tokens": [row.tokens for row in rows],
        "finish_reason": [row.finish_reason for row in rows],
        "text": [" ".join(map(str, row.tokens)) if row.text is None else row.text for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "top_ids": [ids for ids, _ in tops],
        "top_logprobs": [values for _, values in tops],
        "wave": [0] * len(rows),
        "answer": [row.answer for row in rows],
        "outcome": [row.outcome for row in rows],
        "correct": [row.correct for row in rows],
        "marking_note": [""] * len(rows),
    }
    return pa.table(columns, schema=TOKENS_SCHEMA)


def record_of(factors: Mapping[str, Any], repeat: int, rows: Sequence[Row], **more: Any) -> dict:
    """run.json of a complete run; ``factors`` override those of the default Setting."""
    setting = Setting(repeat=repeat)
    known = {item.name for item in dataclasses.fields(Setting)} - {"backend", "model", "task"}
    setting = dataclasses.replace(setting, **{k: v for k, v in factors.items() if k in known})
    flat = {**setting.factors(), **factors}
    tokens = sum(len(row.tokens) for row in rows)
    record = {
        "run_id": digest([flat, repeat, more.get("task_fingerprint")], 16),
        "status": "complete",
        "reason": None,
        "repeat": repeat,
        "factors": flat,
        "requested": setting.to_dict(),
        "resolved": setting.to_dict(),
        "observed": {"logprobs_mode": "raw_fp32"},
        "model_fingerprint": "model-0",
        "task_fingerprint": "task-0",
        "prompts_fingerprint": "prompts-0",
        "task": {"name": "synthetic", "items": len(rows), "marker": "mathematics"},
        "started": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:00:10+00:00",
        "resumed_at": [],
        "wall_s": 10.0,
        "generated_tokens": tokens,
        "tokens_per_s": tokens / 10.0,
        "peak_memory_mb": 512.0,
        "peak_device_memory_mb": None,
        "environment": {"python": "3.11", "gpu": None, "packages": {"torch": "2.13.0"}},
    }
    return {**record, **more}


def write_run(
    runs: Path,
    factors: Mapping[str, Any],
    rows: Sequence[Row],
    *,
    repeat: int = 0,
    samples: int = 1,
    **more: Any,
) -> str:
    """Write one run folder under ``runs`` and return its id; ``more`` overrides run.json."""
    record = record_of(factors, repeat, rows, **more)
    writer = RunWriter(runs / record["run_id"])
    writer.start(record)
    if record["status"] == "complete":
        writer.finish(table_of(rows, samples))
    return str(record["run_id"])


def make_rows(rng: np.random.Generator, items: int, tokens: int, limit: int | None) -> list[Row]:
    """Random responses of about ``tokens`` tokens, at most ``limit`` of them."""
    rows = []
    for _ in range(items):
        length = max(1, int(rng.integers(max(1, tokens // 2), tokens + tokens // 2 + 1)))
        cut = limit is not None and length > limit
        ids = rng.integers(10, 1000, min(length, limit) if limit else length).tolist()
        if not cut:
            ids[-1] = END
        right = int(rng.random() < 0.6)
        rows.append(
            Row(
                ids,
                (-rng.exponential(0.5, len(ids))).astype(np.float32).tolist(),
                "length" if cut else "stop",
                "1" if right else "0",
                "right" if right else "wrong",
                right,
            )
        )
    return rows


def forked(rng: np.random.Generator, row: Row, at: int, noise: float) -> Row:
    """A copy of a response with other tokens from position ``at`` on (never when beyond the end)
    and log-probabilities moved by normal noise."""
    tokens, logprobs = list(row.tokens), np.array(row.logprobs)
    logprobs = np.minimum(logprobs + rng.normal(0, noise, len(logprobs)), 0) if noise else logprobs
    same = dataclasses.replace(row, logprobs=logprobs.astype(np.float32).tolist())
    if at >= len(tokens):
        return same
    other = (1000 + rng.integers(0, 1000, len(tokens) - at)).tolist()
    right = int(rng.random() < 0.6)
    return dataclasses.replace(
        same,
        tokens=tokens[:at] + other,
        answer="1" if right else str(other[0]),
        outcome="right" if right else "wrong",
        correct=right,
    )


def make_study(
    folder: Path,
    settings: Sequence[Mapping[str, Any]] = ({"batch_size": 1}, {"batch_size": 4}),
    *,
    items: int = 8,
    tokens: int = 32,
    repeats: int = 1,
    diverge: float | Sequence[float] = 0.5,
    repeat_diverge: float = 0.0,
    noise: float = 1e-3,
    limit: int | None = None,
    failed: Sequence[int] = (),
    samples: int = 1,
    fork_at: int | None = None,
    seed: int = 0,
    name: str = "synthetic",
) -> Study:
    """Write a study folder (study.json, runs/) and load it.

    Args:
        settings: factors of each setting, over those of the default Setting; others are added.
        diverge: share of items on which a setting leaves the first; one number, or one a setting.
        repeat_diverge: share of items on which a repeat leaves its setting's first repeat.
        noise: standard deviation of the change of log-probabilities between settings.
        limit: token limit; longer responses are cut.
        failed: places of settings whose runs are stored as failed.
        fork_at: position of every fork; random when None.
    """
    rng = np.random.default_rng(seed)
    base = make_rows(rng, items * samples, tokens, limit)
    shares = (
        [0.0] + [diverge] * (len(settings) - 1) if isinstance(diverge, float | int) else diverge
    )

    def leave(row: Row, share: float, spread: float) -> Row:
        at = int(rng.integers(0, len(row.tokens))) if fork_at is None else fork_at
        return forked(rng, row, at if rng.random() < share else len(row.tokens), spread)

    ids = []
    for place, factors in enumerate(settings):
        own = [leave(row, shares[place], noise if place else 0.0) for row in base]
        for repeat in range(repeats):
            rows = [leave(row, repeat_diverge, 0.0) for row in own] if repeat else own
            more: dict[str, Any] = {}
            if place in failed:
                more = {"status": "failed", "reason": "out of memory", "tokens_per_s": None}
            ids.append(
                write_run(folder / "runs", factors, rows, repeat=repeat, samples=samples, **more)
            )
    write_json(folder / "study.json", {"name": name, "seed": seed, "runs": ids})
    return load_study([folder])
