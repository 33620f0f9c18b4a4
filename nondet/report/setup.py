"""The environment of every run: requested, resolved and observed, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from nondet.report.context import Context


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by points; lists as JSON."""
    flat: dict[str, Any] = {}
    for key, part in value.items():
        name = f"{prefix}{key}"
        if isinstance(part, Mapping):
            flat.update(flatten(part, f"{name}."))
        else:
            flat[name] = json.dumps(part) if isinstance(part, list | tuple) else part
    return flat


def run_table(context: Context) -> pd.DataFrame:
    """One row a run: its name, how it ended, when, and its identity."""
    rows = []
    for run in context.study.runs:
        record = run.record
        rows.append(
            {
                "run": context.labels[run.id],
                "status": run.status,
                "reason": record.get("reason") or "",
                "started": record.get("started") or "",
                "wall_s": record.get("wall_s"),
                "generated_tokens": record.get("generated_tokens"),
                "model": record.get("model_fingerprint"),
                "task": record.get("task_fingerprint"),
                "run_id": run.id,
            }
        )
    return pd.DataFrame(rows)


def setting_table(record: Mapping[str, Any]) -> pd.DataFrame:
    """Each factor as requested, resolved and observed."""
    kinds = ("requested", "resolved", "observed")
    parts = {kind: flatten(record.get(kind) or {}) for kind in kinds}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    rows = [{"factor": name, **{kind: parts[kind].get(name) for kind in kinds}} for name in names]
    frame = pd.DataFrame(rows, columns=["factor", *kinds], dtype=object)
    return frame.map(lambda value: "" if value is None else str(value))


def differing(context: Context) -> pd.DataFrame:
    """Facts of the environment that are not the same in all runs, one column a run."""
    runs = context.study.runs
    parts = [flatten(run.record.get("environment") or {}) for run in runs]
    names = dict.fromkeys(name for part in parts for name in part)
    rows = []
    for name in names:
        values = [str(part.get(name, "")) for part in parts]
        if len(set(values)) > 1:
            labels = (context.labels[run.id] for run in runs)
            rows.append({"fact": name, **dict(zip(labels, values, strict=True))})
    return pd.DataFrame(rows)
