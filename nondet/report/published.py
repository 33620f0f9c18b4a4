"""Ours beside published: the paper's printed values where task and model match a study."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

import nondet
from nondet.report.view import View

COLUMNS = ["metric", "dtype", "ours", "low", "high", "our_settings", "our_items", "published"]
COLUMNS += ["published_settings", "unit", "source", "suspect"]

# The metric of sampled answers; all others are of greedy decoding.
SAMPLED = "std_pass_at_1"
# Published metric: our table, factor to the published unit.
OURS = {
    "std_at_acc": ("std_at_acc", 100.0),
    "avg_std_output_length": ("avg_std_output_length", 1.0),
    "avg_std_top1_prob": ("avg_std_top1_prob", 1e4),
    "div_percent": ("div_index", 100.0),
    # Std of Pass@1: the same deviation, of shares of right samples.
    SAMPLED: ("std_at_acc", 100.0),
}


def published_values() -> pd.DataFrame:
    """The typed-in values, one a row; see results/published/README.md."""
    shipped = files("nondet") / "_data" / "published" / "values.csv"
    source = Path(nondet.__file__).parent.parent / "results" / "published" / "values.csv"
    path = Path(str(shipped)) if shipped.is_file() else source
    if not path.exists():
        return pd.DataFrame(columns=["metric", "model", "task", "dtype", "setting", "value"])
    return pd.read_csv(path, keep_default_na=False, dtype={"suspect": str})


def matching(view: View, values: pd.DataFrame) -> pd.DataFrame:
    """Published rows of the study's task and model (the last part of its name or path)."""
    if not view.study.complete:
        return values.head(0)
    run = view.study.complete[0]
    task = str((run.record.get("task") or {}).get("name", ""))
    sampled = values["metric"] == SAMPLED
    if run.factors.get("temperature"):
        # What was sampled is published apart, by its number of samples.
        ending = f" n={int(run.factors.get('samples') or 1)}"
        values = values[sampled & values["setting"].str.endswith(ending)]
    else:
        values = values[~sampled]
    model = (run.record.get("requested") or {}).get("model") or {}
    names = [str(run.factors.get("model", ""))]
    if isinstance(model, dict):
        names += [str(model.get("name") or ""), str(model.get("path") or "")]
    known = {name.rstrip("/").split("/")[-1].split(":")[0].lower() for name in names}
    same = (values["task"] == task) & values["model"].str.lower().isin(known)
    return values[same]


def beside_published(view: View) -> pd.DataFrame:
    """One row a published value of the study's task and model, ours beside it; else empty."""
    found = matching(view, published_values())
    rows: list[dict[str, Any]] = []
    for entry in found.to_dict("records"):
        ours = _ours(view, str(entry["metric"]), str(entry["dtype"]))
        rows.append(
            {
                "metric": entry["metric"],
                "dtype": entry["dtype"],
                **ours,
                "published": float(entry["value"]),
                "published_settings": entry["setting"],
                "unit": entry["unit"],
                "source": entry["source"],
                "suspect": entry["suspect"],
            }
        )
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table[table["ours"].notna()].reset_index(drop=True)


def _ours(view: View, metric: str, dtype: str) -> dict[str, Any]:
    """Our value of a metric over the settings of one dtype, in the published unit."""
    nothing = {"ours": None, "low": None, "high": None, "our_settings": None, "our_items": None}
    dtypes = {str(run.factors.get("dtype")) for run in view.study.complete}
    group = "all settings" if dtypes == {dtype} else f"dtype {dtype}"
    name, factor = OURS.get(metric, ("div_index", 1.0))
    table: pd.DataFrame = getattr(view.analysis, name)
    rows = table[table["group"] == group] if len(table) else table
    if rows.empty:
        return nothing
    row = rows.iloc[0]
    if metric == "avg_div_index":
        value, low, high = row["paper_value"], row["mean_low"], row["mean_high"]
    elif metric in OURS:
        value, low, high = (row[key] * factor for key in ("value", "low", "high"))
    else:
        return nothing
    counts = {"our_settings": int(row["settings"]), "our_items": int(row["items"])}
    return {"ours": value, "low": low, "high": high, **counts}
