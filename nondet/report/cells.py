"""Cells to be drawn: the prefix raster, and the matrix of settings. No new statistic is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nondet.report.context import Context
from nondet.report.drawn import first_repeats
from nondet.report.grids import MOST_CELLS

MOST_COLUMNS = 160


@dataclass(frozen=True)
class Raster:
    """Cells of a prefix raster; see ``grids.raster_figure``. table: one row an item."""

    share_PT: NDArray[np.float64]
    edges: list[int]
    forks: list[float]
    items: list[str]
    table: pd.DataFrame
    reference: str
    note: str


def raster(context: Context, name: str) -> Raster | None:
    """The raster of one slice, earliest fork first, or None when it has one run only."""
    table = context.view.divergence
    table = table[table["slice"] == name] if len(table) else table
    if table.empty:
        return None
    first = table["run_id"].isin(first_repeats(context))
    table = table[first] if first.any() else table
    grouped = table.groupby(table["item"].astype(str), sort=False)
    items = pd.DataFrame(
        {"position": grouped["position"].min(), "length": grouped["len_ref"].first()}
    )
    order = items.assign(key=items["position"].fillna(np.iinfo(np.int64).max))
    items = order.sort_values(["key", "length"], kind="stable").drop(columns="key")
    places = {item: row for row, item in enumerate(items.index)}
    longest = max(1, int(items["length"].max()))
    width = -(-longest // MOST_COLUMNS)
    edges = [*range(0, longest, width), longest]
    share = _shares(table, places, np.array(edges[:-1]))
    lengths = items["length"].to_numpy()
    share[np.array(edges[:-1])[None, :] >= lengths[:, None]] = np.nan
    at = items["position"].astype("Float64").to_numpy(dtype=float, na_value=np.nan) / width
    runs = table["run_id"].nunique()
    note = f" {runs} other {'run' if runs == 1 else 'runs'}."
    if width > 1:
        note += f" A column holds {width} tokens."
    reference = str(table["reference_label"].iloc[0])
    forks = [float(value) for value in at]
    return Raster(
        share, edges, forks, list(items.index), items.reset_index(names="item"), reference, note
    )


def _shares(
    table: pd.DataFrame, places: Mapping[str, int], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    runs = np.zeros((len(places), len(starts)))
    share = np.zeros((len(places), len(starts)))
    rows = table["item"].astype(str).map(dict(places)).to_numpy(dtype=np.int64)
    never = np.iinfo(np.int64).max
    positions = table["position"].fillna(never).to_numpy(dtype=np.int64)
    # Behind its end a response that was cut too early is neither equal nor not.
    cut = ~table["event"].to_numpy(dtype=bool) & (table["common"] < table["len_ref"]).to_numpy()
    ends = np.where(cut, table["common"].to_numpy(dtype=np.int64), never)
    for row, position, end in zip(rows, positions, ends, strict=True):
        runs[row] += starts < end
        share[row] += starts < min(position, end)
    return np.divide(share, runs, out=np.full_like(share, np.nan), where=runs > 0)


def matrix(context: Context) -> tuple[list[str], NDArray[np.float64], pd.DataFrame]:
    """Settings, share of identical items (C, C) of those that could be compared to their end, and
    the same as rows."""
    pairs, study = context.view.analysis.pairs, context.study
    first: dict[str, int] = {}
    names: list[str] = []
    place: dict[str, int] = {}
    for run in study.complete:
        key = repr(study.setting_key(run))
        if key not in first:
            first[key] = len(names)
            names.append(study.label(run))
        place[run.id] = first[key]
    share = np.full((len(names), len(names)), np.nan)
    rows = []
    for pair in pairs.to_dict("records"):
        a, b = place[pair["run_a"]], place[pair["run_b"]]
        decided = pair["identical"] + pair["diverged"]
        if decided:
            # Of several repeats the least equal one is shown.
            value = pair["identical"] / decided
            share[a, b] = share[b, a] = np.nanmin([value, share[a, b]])
    for a, name in enumerate(names):
        for b in range(a, len(names)):
            if not np.isnan(share[a, b]):
                rows.append({"setting_a": name, "setting_b": names[b], "share": share[a, b]})
    table = pd.DataFrame(rows, columns=["setting_a", "setting_b", "share"])
    table.attrs["left"] = max(0, len(names) - MOST_CELLS)
    return names[:MOST_CELLS], share[:MOST_CELLS, :MOST_CELLS], table
