"""What differs from the published runs: their confounders, with what was in force in ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from nondet.report.context import software
from nondet.runs import Run

NONE = "none in this engine"
HELD, VARIED, FOLLOWS = "held constant", "varied", "follows the dtype"
WIDE = ("fp32", "layercast")


def confounders(runs: Iterable[Run]) -> pd.DataFrame:
    """One row a confounder: the paper's values, ours as observed, and whether it was held."""
    members = list(runs)
    rows = []
    for entry in _given()["confounders"]:
        sides = [_values(members, entry["keys"], wide) for wide in (False, True)]
        rows.append(
            {
                "what": entry["what"],
                "paper, BF16 and FP16": entry["paper_16"],
                "paper, FP32 and LayerCast": entry["paper_32"],
                "ours, BF16 and FP16": " or ".join(sides[0]) or "no run",
                "ours, FP32 and LayerCast": " or ".join(sides[1]) or "no run",
                "in ours": _held(*sides),
            }
        )
    return pd.DataFrame(rows)


def method() -> pd.DataFrame:
    """Where the method differs on purpose."""
    return pd.DataFrame(_given()["method"])


def _given() -> Mapping[str, Any]:
    given: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "departures.yaml").read_text())
    return given


def _values(runs: Sequence[Run], keys: Sequence[str], wide: bool) -> list[str]:
    """Distinct observed values of the runs of one side, in the order they were met."""
    found: dict[str, None] = {}
    for run in runs:
        if (run.factors.get("dtype") in WIDE) == wide:
            observed = run.record.get("observed") or {}
            there = [_at(observed, key) for key in keys]
            known = [value for value in there if value is not None]
            if not known and "engine" in keys:
                known = [software([run])]
            found[_text(known[0]) if known else NONE] = None
    return list(found)


def _at(observed: Mapping[str, Any], key: str) -> Any:
    """A value by its key, an inner one by ``outer.inner``; None where there is none."""
    value: Any = observed
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    """A value in a cell of the table: of a list its members, of counts by name the names."""
    return ", ".join(map(str, value)) if isinstance(value, list | dict) else str(value)


def _held(narrow: Sequence[str], wide: Sequence[str]) -> str:
    if len({*narrow, *wide}) <= 1:
        return HELD
    if len(narrow) <= 1 and len(wide) <= 1:
        return FOLLOWS
    return VARIED
