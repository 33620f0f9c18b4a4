"""Stored runs made small enough for git, without touching a token or a log-probability.

    python -m experiments.yuan2025.pack FOLDER [CANDIDATES]

Keeps the two best candidates (or CANDIDATES) of each position, writes floats split by byte, which
compresses better, takes worker logs and lock files away, and drops runs that cells.json does not
name. Says how large each was and is.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nondet.runs import TOKENS_SCHEMA, Run, RunWriter, read_run
from nondet.study import run_folders

FLOATS = ("logprobs.list.element", "top_logprobs.list.element")
LEVEL = 19


def fewer_candidates(table: pa.Table, had: int, keep: int) -> pa.Table:
    """The table with the first ``keep`` of ``had`` candidates at each position."""
    for name in ("top_ids", "top_logprobs"):
        rows = [
            None if row is None else [v for at, v in enumerate(row) if at % had < keep]
            for row in table[name].to_pylist()
        ]
        column = pa.array(rows, TOKENS_SCHEMA.field(name).type)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def pack_run(run: Run, keep: int) -> tuple[int, int]:
    """Rewrite one run; bytes of its tokens.parquet before and after."""
    path = run.folder / "tokens.parquet"
    before, table = path.stat().st_size, run.table()
    had = run.top_k
    if had > keep:
        table = fewer_candidates(table, had, keep)
    partial = path.with_suffix(".part")
    columns = [name for name in table.schema.names if table.schema.field(name).type != pa.null()]
    pq.write_table(
        table,
        partial,
        compression="zstd",
        compression_level=LEVEL,
        use_dictionary=[name for name in columns if name not in ("logprobs", "top_logprobs")],
        use_byte_stream_split=list(FLOATS),
    )
    partial.replace(path)
    if had > keep:
        factors = {**run.record["factors"], "top_k": keep}
        RunWriter(run.folder).record({**run.record, "factors": factors})
    for rest in ("worker.log", "job.json"):
        (run.folder / rest).unlink(missing_ok=True)
    return before, path.stat().st_size


def main(words: list[str]) -> None:
    """Pack every run of a folder that its cells.json names."""
    folder, keep = Path(words[0]), int(words[1]) if len(words) > 1 else 2
    cells = json.loads((folder / "cells.json").read_text())["cells"]
    named = {what["run"] for what in cells.values() if "run" in what and "reason" not in what}
    total = [0, 0]
    for path in run_folders(folder / "runs"):
        if path.name not in named:
            shutil.rmtree(path)
            continue
        before, after = pack_run(read_run(path), keep)
        total = [total[0] + before, total[1] + after]
    for lock in (folder / "runs").glob(".*.lock"):
        lock.unlink()
    shutil.rmtree(folder / "said", ignore_errors=True)
    print(f"{len(named)} runs, {total[0] / 1e6:.2f} MB before, {total[1] / 1e6:.2f} MB after")


if __name__ == "__main__":
    main(sys.argv[1:])
