"""The parent's half of one run: start the worker, follow it, mark the answers, keep the record."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from filelock import FileLock

from nondet.environment import child_environment
from nondet.marking import get_marker
from nondet.marking.table import mark_table
from nondet.plan import Plan
from nondet.progress import Display
from nondet.runs import RESPONSE_SCHEMA, Run, RunWriter, read_run, write_json, write_table
from nondet.settings import one_line

# Kept free until a run ends, so that a full disk can still record its failure.
RESERVE_BYTES = 1 << 17
LOG_LINES = 3
MOST_NOTES = 50


def execute(
    plan: Plan,
    store: Path,
    display: Display,
    label: str,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Do one run, or what is left of it; returns its status: complete, failed, or skipped.

    store: the folder of all runs. environment: variables of the worker alone, such as the GPUs it
    may see. A failure is recorded with its reason, never raised.
    """
    folder = store / plan.run_id
    store.mkdir(parents=True, exist_ok=True)
    with FileLock(store / f".{plan.run_id}.lock"):
        known = _known(folder)
        if known is not None and known.status == "complete":
            if known.record["task_fingerprint"] != plan.task_fingerprint:
                _mark_again(plan, known)
            display.run_begins(label, len(plan.workload.requests), 0)
            display.run_ends("skipped, this run is already there")
            return "skipped"
        return _run(plan, RunWriter(folder), known, display, label, environment or {})


def _known(folder: Path) -> Run | None:
    try:
        return read_run(folder)
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _run(
    plan: Plan,
    writer: RunWriter,
    known: Run | None,
    display: Display,
    label: str,
    environment: Mapping[str, str],
) -> str:
    record = first_record(plan)
    if known is not None:
        record["started"] = known.record["started"]
        record["resumed_at"] = [*known.record.get("resumed_at", []), now()]
    writer.start(record)
    if plan.backend.stateful:
        writer.drop_parts()
    reserve = writer.folder / ".reserve"
    job = {
        "setting": plan.setting.to_dict(),
        "backend_class": f"{plan.backend.__module__}:{plan.backend.__qualname__}",
        "model_path": str(plan.model.path),
        "workload": plan.workload.to_dict(),
    }
    done = sum(pq.read_metadata(writer.part_path(n)).num_rows for n in writer.done_waves())
    display.run_begins(label, len(plan.workload.requests), done)
    try:
        reserve.write_bytes(bytes(RESERVE_BYTES))
        write_json(writer.folder / "job.json", job)
        reason = _follow(plan, writer.folder, record, display, environment)
        if reason is None:
            _finish(plan, writer, record)
    except OSError as error:
        reason = f"{type(error).__name__}: {error.strerror or error}"
    except ValueError as error:  # parts that do not add up, or a report cut off
        reason = f"{type(error).__name__}: {one_line(error)}"
    reserve.unlink(missing_ok=True)
    record["ended"] = now()
    record["status"] = "complete" if reason is None else "failed"
    record["reason"] = reason
    with suppress(OSError):
        (writer.folder / "job.json").unlink()
        if reason is None:
            (writer.folder / "worker.log").unlink()
    writer.record(record)
    words = reason or f"done, {record['tokens_per_s']:.0f} tokens/s"
    display.run_ends(words if reason is None else f"FAILED, {words}")
    return str(record["status"])


def first_record(plan: Plan) -> dict[str, Any]:
    """run.json as it is while a run goes on."""
    task = plan.task
    return {
        "run_id": plan.run_id,
        "status": "partial",
        "reason": None,
        "repeat": plan.setting.repeat,
        "factors": plan.setting.factors(),
        "requested": plan.setting.to_dict(),
        "resolved": plan.resolved,
        "observed": {},
        "model_fingerprint": plan.model.fingerprint,
        "prompts_fingerprint": plan.workload.fingerprint,
        "task_fingerprint": plan.task_fingerprint,
        "task": {
            "setting": plan.setting.to_dict()["task"],
            "name": task.name,
            "source": task.source,
            "items": len(task.items),
            "marker": task.marker,
            "marker_version": get_marker(task.marker).version,
        },
        "started": now(),
        "resumed_at": [],
        "environment": {},
    }


def now() -> str:
    """UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _follow(
    plan: Plan,
    folder: Path,
    record: dict[str, Any],
    display: Display,
    environment: Mapping[str, str],
) -> str | None:
    """Run the worker to its end; the reason why it failed, or None."""
    reason: str | None = "the worker ended without a word"
    with _worker(plan, folder, environment) as process:
        with _deadline(process, plan.setting.timeout_s) as late:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                kind = event.pop("event")
                if kind == "ready":
                    record["observed"] = event["observed"]
                    record["environment"] = event["environment"]
                    record["load_s"] = event["load_s"]
                elif kind == "wave":
                    display.wave_done(event["items"], event["tokens"], event["seconds"])
                elif kind == "failed":
                    reason = event.pop("reason")
                    record.update(event)
                elif kind == "done":
                    reason = None
                    record.update(event)
            code = process.wait()
        if reason is None:
            # All waves are on disk. Engines may crash or hang in their own shutdown.
            if code:
                record["worker_exit"] = code
            return None
        if late:
            return f"time limit: not done after {plan.setting.timeout_s:g} s"
        if code < 0:
            return f"worker killed by {signal.Signals(-code).name}{_log_end(folder)}"
        if reason == "the worker ended without a word":
            return f"{reason}, exit code {code}{_log_end(folder)}"
        return reason


@contextmanager
def _worker(plan: Plan, folder: Path, extra: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The worker process in a session of its own; nothing of it is left afterwards."""
    python = str(plan.python or sys.executable)
    environment = child_environment({**extra, **plan.backend.environment(plan.setting)})
    environment["PYTHONUNBUFFERED"] = "1"
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [python, "-m", "nondet.worker", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _deadline(process: subprocess.Popen[str], seconds: float | None) -> Iterator[list[bool]]:
    """Kill the process group after ``seconds``; the list is non-empty if that happened."""
    late: list[bool] = []

    def kill() -> None:
        late.append(True)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    if seconds is None:
        yield late
        return
    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _log_end(folder: Path) -> str:
    lines = (folder / "worker.log").read_text(errors="replace").strip().splitlines()
    return "; log: " + " | ".join(lines[-LOG_LINES:]) if lines else ""


def _finish(plan: Plan, writer: RunWriter, record: dict[str, Any]) -> None:
    """Join the parts, mark the answers, write tokens.parquet and the totals."""
    work = plan.workload
    order = [(r.item_id, sample) for r, sample in zip(work.requests, work.samples, strict=True)]
    notes = [pq.read_schema(writer.part_path(n)).metadata for n in sorted(writer.done_waves())]
    seconds = [float(note[b"seconds"]) for note in notes]
    said = [pair for note in notes for pair in json.loads(note.get(b"notes", b"[]"))]
    firsts = [float(note[b"first_token_s"]) for note in notes if note.get(b"first_token_s")]
    table = writer.collect(order)
    tokens = len(table["tokens"].combine_chunks().flatten())
    record["wall_s"] = sum(seconds)
    record["generated_tokens"] = tokens
    record["tokens_per_s"] = tokens / sum(seconds) if sum(seconds) else 0.0
    if said:
        record["notes"] = {"count": len(said), "first": said[:MOST_NOTES]}
    # The first wave warms up, so the median.
    record["first_token_s"] = median(firsts) if firsts else None
    writer.finish(mark_table(plan.task, table))


def _mark_again(plan: Plan, known: Run) -> None:
    table = mark_table(plan.task, known.table(RESPONSE_SCHEMA.names))
    write_table(known.folder / "tokens.parquet", table)
    record = first_record(plan)
    fresh = {key: record[key] for key in ("task", "task_fingerprint")}
    RunWriter(known.folder).record({**known.record, **fresh})
