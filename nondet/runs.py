"""A run folder: the one place where tokens are kept, written so that a kill never breaks it.

    runs/<run_id>/run.json         what was asked, what was in force, how it ended
    runs/<run_id>/parts/*.parquet  whole waves of an unfinished run
    runs/<run_id>/tokens.parquet   all items of a finished run, one row a response
    runs/<run_id>/worker.log       what the worker process printed

run.json holds: schema_version, run_id, status (partial, complete, failed), reason of a failure,
repeat, factors (flat, as requested), requested / resolved / observed settings, model_fingerprint,
task_fingerprint (prompts, answers, marker), prompts_fingerprint (prompt token ids alone), task
(setting, name, items, marker, marker_version), started, ended, resumed_at, wall_s,
generated_tokens, tokens_per_s, peak_memory_mb, peak_device_memory_mb, environment; where the
engine can tell, first_token_s (median over waves of the seconds to the first tokens), weights_mb
and cache_mb (10^6 bytes); notes where the engine said something of single responses, such as why
one is an error (count, and the first as pairs of item_id and words);
worker_exit where the worker crashed after its last answer (a negative number is a signal).

Every file is written under another name and renamed into place.
Positions count from 0. T response tokens, K top candidates; (T, K) arrays are stored flat, row
by row.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

# History: 1 first version.
SCHEMA_VERSION = 1

RESPONSE_SCHEMA = pa.schema(
    [
        ("item_id", pa.string()),
        ("sample", pa.int32()),
        ("prompt_hash", pa.string()),
        ("prompt_tokens", pa.int32()),  # how many
        ("tokens", pa.list_(pa.int32())),  # T, the end token kept
        ("finish_reason", pa.string()),  # stop, length, error
        ("text", pa.string()),
        ("logprobs", pa.list_(pa.float32())),  # T, of the emitted tokens
        ("top_ids", pa.list_(pa.int32())),  # T * K
        ("top_logprobs", pa.list_(pa.float32())),  # T * K
        ("wave", pa.int32()),
    ]
)
MARK_SCHEMA = pa.schema(
    [
        ("answer", pa.string()),
        ("outcome", pa.string()),
        ("correct", pa.int8()),  # 1, 0 or null
        ("marking_note", pa.string()),
    ]
)
TOKENS_SCHEMA = pa.unify_schemas([RESPONSE_SCHEMA, MARK_SCHEMA])

# Fields of run.json that must agree before two runs may be compared (``incomparable``).
DECODING = ("max_new_tokens", "temperature", "top_p", "seed", "samples")


def digest(value: object, length: int = 16) -> str:
    """Hash of a JSON value, independent of key order; ``length`` hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def prompt_hash(tokens: Sequence[int]) -> str:
    """Hash of a prompt's token ids."""
    return digest([int(token) for token in tokens])


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a reader sees the old file or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w") as file:
            json.dump(value, file, indent=1, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a parquet file so that a reader sees the old file or the whole new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, partial, compression="zstd")
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.record["run_id"])

    @property
    def status(self) -> str:
        """complete, failed or partial."""
        return str(self.record["status"])

    @property
    def repeat(self) -> int:
        return int(self.record["repeat"])

    @property
    def factors(self) -> dict[str, Any]:
        """Factor names and values, as requested."""
        return dict(self.record["factors"])

    @property
    def top_k(self) -> int:
        return int(self.record["factors"]["top_k"])

    @cached_property
    def item_ids(self) -> list[str]:
        """Item ids in task order (repeated when an item has several samples)."""
        ids: list[str] = self.table(["item_id"])["item_id"].to_pylist()
        return ids

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of tokens.parquet in task order, some columns or all. Raises FileNotFoundError."""
        return pq.read_table(self.folder / "tokens.parquet", columns=columns)


def read_run(folder: Path) -> Run:
    """The run in a folder. Raises FileNotFoundError, or ValueError for a newer schema."""
    record = json.loads((folder / "run.json").read_text())
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"{folder}: run schema {version}, this version reads {SCHEMA_VERSION}")
    return Run(folder, record)


def incomparable(a: Run, b: Run) -> str | None:
    """Why two runs must not be compared: the first field that differs, or None.

    Model and task fingerprints, decoding parameters and the definition of a logprob must agree, and
    whether positions count tokens or, in an imported text, characters.
    """
    unit_a, unit_b = (
        (run.record.get("observed") or {}).get("token_unit", "tokens") for run in (a, b)
    )
    if unit_a != unit_b:
        return f"token_unit: {unit_a} against {unit_b}"
    for field in ("model_fingerprint", "prompts_fingerprint"):
        if a.record.get(field) != b.record.get(field):
            return f"{field}: {a.record.get(field)} against {b.record.get(field)}"
    for field in DECODING:
        if a.factors.get(field) != b.factors.get(field):
            return f"{field}: {a.factors.get(field)} against {b.factors.get(field)}"
    mode_a, mode_b = (run.record.get("observed", {}).get("logprobs_mode") for run in (a, b))
    if mode_a != mode_b:
        return f"logprobs_mode: {mode_a} against {mode_b}"
    return None


class RunWriter:
    """Writes a run folder wave by wave. One writer at a time (the caller holds the lock)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder / "parts"

    def start(self, record: Mapping[str, Any]) -> None:
        """Make the folder and write run.json; parts of an earlier, killed try stay."""
        self.parts.mkdir(parents=True, exist_ok=True)
        for leftover in (*self.folder.glob(".*"), *self.parts.glob(".*")):
            leftover.unlink()
        self.record(record)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write run.json."""
        write_json(self.folder / "run.json", {"schema_version": SCHEMA_VERSION, **record})

    def part_path(self, wave: int) -> Path:
        """The part that holds one wave."""
        return self.parts / f"{wave:06d}.parquet"

    def done_waves(self) -> set[int]:
        """Waves whose part is on disk, whole."""
        return {int(path.stem) for path in self.parts.glob("[0-9]*.parquet")}

    def drop_parts(self) -> None:
        """Forget what an earlier try wrote (engines with state between waves start over)."""
        for path in self.parts.glob("*"):
            path.unlink()

    def collect(self, order: Iterable[tuple[str, int]]) -> pa.Table:
        """All parts as one table, in the order of (item_id, sample). Raises ValueError for a gap
        or a double."""
        paths = sorted(self.parts.glob("[0-9]*.parquet"))
        empty = RESPONSE_SCHEMA.empty_table()
        parts = [pq.read_table(path, schema=RESPONSE_SCHEMA) for path in paths]
        table = pa.concat_tables(parts or [empty])
        keys = list(zip(table["item_id"].to_pylist(), table["sample"].to_pylist(), strict=True))
        place = {key: row for row, key in enumerate(keys)}
        wanted = list(order)
        if len(place) != len(keys) or set(place) != set(wanted):
            missing = sorted(set(wanted) - set(place))[:3]
            counts = f"{len(keys)} rows for {len(wanted)}"
            raise ValueError(f"{self.folder}: {counts}, missing {missing}")
        return table.take([place[key] for key in wanted])

    def finish(self, table: pa.Table) -> None:
        """Write tokens.parquet; only then the parts go."""
        write_table(self.folder / "tokens.parquet", table.cast(TOKENS_SCHEMA))
        shutil.rmtree(self.parts)
