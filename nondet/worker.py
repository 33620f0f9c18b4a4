"""The child process of one run: reads its job, generates wave by wave, writes parts.

    python -m nondet.worker RUN_FOLDER

Started in the backend's own interpreter; needs numpy, pyarrow and the engine, not Hydra. It
reports to its parent in JSON lines on the pipe it was given as standard output; whatever the
engine prints goes to worker.log. When the parent is gone (its end of standard input closes),
the worker ends at once with everything it started.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from nondet.backends.base import Backend, Request, Response
from nondet.environment import snapshot
from nondet.runs import RESPONSE_SCHEMA, RunWriter, write_table
from nondet.settings import setting_from
from nondet.waves import plan_waves
from nondet.workload import Workload, workload_from


def main(folder: Path) -> int:
    """Run the job in ``folder``; 0 when all waves are on disk, 1 when it failed."""
    report = _own_stdout()
    threading.Thread(target=_follow_parent, daemon=True).start()
    backend: Backend | None = None
    try:
        job = json.loads((folder / "job.json").read_text())
        setting = setting_from(job["setting"])
        module, name = job["backend_class"].split(":")
        cls: type[Backend] = getattr(import_module(module), name)
        began = time.perf_counter()
        backend = cls(setting, job["model_path"])
        backend.start()
        _say(
            report,
            event="ready",
            load_s=time.perf_counter() - began,
            observed=backend.observed(),
            environment=snapshot(cls.packages()),
        )
        _generate(backend, workload_from(job["workload"]), RunWriter(folder), report)
        # Again at the end: an endpoint's faults and fingerprints are known only now.
        observed = backend.observed()
        _say(report, event="done", observed=observed, **backend.memory_mb(), **peaks())
        return 0
    except BaseException as error:
        traceback.print_exc()
        _say(report, event="failed", reason=reason_of(error), **peaks())
        return 1
    finally:
        if backend is not None:
            backend.close()


def _generate(backend: Backend, work: Workload, writer: RunWriter, report: TextIO) -> None:
    setting = backend.setting
    requests = list(work.requests)
    lengths = [len(request.prompt_tokens) for request in requests]
    if setting.padding == "fixed":
        requests = [replace(request, pad_to=max(lengths)) for request in requests]
    done = writer.done_waves()
    waves = plan_waves(lengths, setting.batch_size, setting.batching, setting.padding, setting.seed)
    for number, wave in enumerate(waves):
        if number in done:
            continue
        began = time.perf_counter()
        responses = backend.generate([requests[position] for position in wave])
        seconds = time.perf_counter() - began
        check_responses([requests[p] for p in wave], responses, setting.top_k)
        table = wave_table(work, wave, responses, number)
        first = backend.first_token_s
        told = {"seconds": repr(seconds), "first_token_s": "" if first is None else repr(first)}
        told["notes"] = json.dumps([[r.item_id, r.note] for r in responses if r.note])
        table = table.replace_schema_metadata(told)
        write_table(writer.part_path(number), table)
        tokens = sum(len(response.tokens) for response in responses)
        _say(report, event="wave", wave=number, items=len(wave), tokens=tokens, seconds=seconds)


def check_responses(wave: Sequence[Request], responses: Sequence[Response], top_k: int) -> None:
    """Raise ValueError unless a backend kept its contract for one wave."""
    asked, got = [r.item_id for r in wave], [r.item_id for r in responses]
    if asked != got:
        raise ValueError(f"backend answered {got[:3]}... to {asked[:3]}...")
    for response in responses:
        length = len(response.tokens)
        shapes = (response.logprobs.shape, response.top_ids.shape, response.top_logprobs.shape)
        if shapes != ((length,), (length, top_k), (length, top_k)):
            raise ValueError(f"item {response.item_id}: {length} tokens but shapes {shapes}")


def wave_table(
    work: Workload, wave: Sequence[int], responses: Sequence[Response], number: int
) -> pa.Table:
    """The rows of one wave in RESPONSE_SCHEMA; (T, K) arrays flat, row by row."""
    columns = {
        "item_id": [response.item_id for response in responses],
        "sample": [work.samples[position] for position in wave],
        "prompt_hash": [work.hashes[position] for position in wave],
        "prompt_tokens": [len(work.requests[position].prompt_tokens) for position in wave],
        "tokens": [np.asarray(r.tokens, np.int32) for r in responses],
        "finish_reason": [response.finish_reason for response in responses],
        "text": [response.text for response in responses],
        "logprobs": [np.asarray(r.logprobs, np.float32) for r in responses],
        "top_ids": [np.asarray(r.top_ids, np.int32).ravel() for r in responses],
        "top_logprobs": [np.asarray(r.top_logprobs, np.float32).ravel() for r in responses],
        "wave": [number] * len(wave),
    }
    return pa.table(columns, schema=RESPONSE_SCHEMA)


def reason_of(error: BaseException) -> str:
    """One line for the record: what kind of failure, and its first line."""
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":
        name = "out of memory"
    lines = str(error).strip().splitlines()
    return f"{name}: {lines[0][:300]}" if lines else name


def peaks() -> dict[str, float | None]:
    """Peak memory of this process in MB (10^6 bytes), on the host and on the device."""
    unit = 1 if sys.platform == "darwin" else 1024
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    device = None
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        device = torch.cuda.max_memory_allocated() / 1e6
    return {"peak_memory_mb": host, "peak_device_memory_mb": device}


def _own_stdout() -> TextIO:
    """Keep the pipe to the parent for reports alone; prints of the engine go to the log."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return pipe


def _say(pipe: TextIO, **event: Any) -> None:
    pipe.write(json.dumps(event, default=str) + "\n")
    pipe.flush()


def _follow_parent() -> None:
    # The parent never writes: this returns when it is gone, however it went.
    os.read(0, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
