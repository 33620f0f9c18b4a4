"""The paper's figures from the results of a scale, as panels of the report."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.yuan2025.arrange import arranged, rank
from experiments.yuan2025.forks import candidates
from experiments.yuan2025.numbers import SEED, Workload, level, partition, value_of
from experiments.yuan2025.tables import Spec, Tables, specs, wanted
from nondet.metrics.divergence import decided, div_index, unique_outputs
from nondet.metrics.intervals import mean_over_items
from nondet.metrics.load import read_column
from nondet.metrics.prefix import NEVER
from nondet.report.curves import histogram_figure
from nondet.report.drawn import bin_edges
from nondet.report.panel import Panel
from nondet.report.style import (
    COLUMN,
    DTYPE_COLOURS,
    DTYPE_MARKERS,
    FAINT,
    INK,
    OTHER_COLOURS,
    canvas,
    looks,
    shorten,
)

LABELS = {
    "avg_std_top1_prob": "Avg_Std@top1_prob (1e-4), 95 % interval",
    "div_percent": "answers that part (%), 95 % interval",
}
# The axis of the paper's figure 3, and its bins.
GAP_EDGES = np.linspace(0.0, 0.03, 31)
DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
# Rows of a figure of estimates.
MOST_ROWS = 48
NOTHING = "No finished runs of this scale enter here."


def make(name: str, tables: Tables) -> Panel:
    """A figure by its name in tables.yaml. Call inside ``nondet.report.style.house``."""
    spec = specs("figures")[name]
    if "draw" not in spec:
        return Panel(name, spec["title"], "", pd.DataFrame(), words=spec["words"])
    panel: Panel = DRAWERS[spec["draw"]](name, spec, arranged(tables))
    return panel


def _members(spec: Spec, tables: Tables) -> list[tuple[Workload, list[int]]]:
    """The runs a figure uses, by workload."""
    found = []
    for workload in tables.workloads:
        runs = [
            place
            for place, result in enumerate(workload.results)
            if wanted(result.cell, spec, tables.scale)
        ]
        if runs:
            found.append((workload, runs))
    return found


def _accuracies(name: str, spec: Spec, tables: Tables) -> Panel:
    """Every setting's accuracy as a mark, one row a model and task."""
    rows = []
    for workload, runs in _members(spec, tables):
        for place in runs:
            result = workload.results[place]
            setting = f"{value_of(result, 'gpus')} x {result.cell.hardware}"
            head = {"row": f"{workload.model}, {workload.name}", "setting": setting}
            head["batch_size"] = value_of(result, "batch_size")
            rows.append({**head, **level(workload, place)})
    table = pd.DataFrame(rows)
    if table.empty:
        return Panel(name, spec["title"], "", table, words=NOTHING)
    figure = _rows_figure(table.assign(dtype="bf16"), "accuracy (%), one mark a setting")
    spread = table.groupby("row", sort=False)["ours"].agg(["min", "max", "count"])
    listed = "; ".join(
        f"{row}: {s['min']:.1f} to {s['max']:.1f} over {s['count']:.0f} settings"
        for row, s in spread.iterrows()
    )
    note = "Lines: 95 % interval of each accuracy if every item were drawn anew. " + listed + "."
    return Panel(name, spec["title"], f"Accuracies. {listed}.", table, figure, note=note)


def _estimates(name: str, spec: Spec, tables: Tables) -> Panel:
    """A metric with its interval, one row a model, task, dtype and slice."""
    rows: list[dict[str, Any]] = []
    for by in spec.get("slices", [[]]):
        found = tables.estimate_rows(f"{name} {by}", {**spec, "by": by})
        tasks = list(dict.fromkeys((row["model"], row["task"]) for row in found))
        found.sort(key=lambda row: (tasks.index((row["model"], row["task"])), rank(row.get)))
        for row in found:
            slice_name = ", ".join(f"{key} {row[key]}" for key in by)
            words = [shorten(str(row["task"]), 24), slice_name, str(row["dtype"])]
            if len(tables.scale.models) > 1:
                words.insert(0, shorten(str(row["model"]), 20))
            rows.append({"row": ", ".join(word for word in words if word), **row})
    table = pd.DataFrame(rows)
    if "ours" not in table or table["ours"].isna().all():
        return Panel(name, spec["title"], "", table, words=NOTHING)
    drawn = table[table["ours"].notna()].head(MOST_ROWS)
    figure = _rows_figure(drawn, LABELS[spec["metric"]])
    listed = "; ".join(f"{r['row']}: {r['ours']:.3g}" for r in drawn.to_dict("records"))
    left = int(table["ours"].notna().sum()) - len(drawn)
    note = (
        f"{len(drawn)} of {len(table)} rows are drawn; " if left or len(drawn) < len(table) else ""
    )
    note += "rows without a number are in the CSV with the reason." if note else ""
    return Panel(name, spec["title"], f"{spec['title']}. {listed}.", table, figure, note=note)


def _rows_figure(table: pd.DataFrame, label: str) -> Figure:
    """Marks with intervals, one line a distinct ``row``; colour and shape follow the dtype."""
    names = list(dict.fromkeys(table["row"]))
    figure, ax = canvas(COLUMN, 0.8 + 0.2 * max(len(names), 3))
    for row in table.to_dict("records"):
        dtype = str(row["dtype"])
        colour = DTYPE_COLOURS.get(dtype, OTHER_COLOURS[0])
        at = names.index(row["row"])
        if not (pd.isna(row["low"]) or pd.isna(row["high"])):
            ax.plot([row["low"], row["high"]], [at, at], color=colour, lw=1.1, alpha=0.55)
        marker = DTYPE_MARKERS.get(dtype, "o")
        ax.plot(row["ours"], at, marker, color=colour, ms=4.5, alpha=0.8, mew=0)
    ax.set_yticks(range(len(names)), [shorten(name, 44) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x", color=FAINT, lw=0.6)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    # Under the whole figure: long names of rows leave the axes less room than the label needs.
    figure.supxlabel(label, fontsize=ax.xaxis.label.get_fontsize(), color=INK)
    return figure


def _histogram(name: str, spec: Spec, tables: Tables) -> Panel:
    """Div_Index in bins of doubling width, one panel a dtype; the first task is drawn."""
    found = {}
    for workload, _ in _members(spec, tables):
        groups = partition(workload, lambda r: wanted(r.cell, spec, tables.scale), ["dtype"])
        for (dtype,), group in groups.items():
            if len(group.runs) > 1:
                forest = workload.loaded.forest
                position = div_index(forest, group.runs)
                known = decided(position, unique_outputs(forest, group.runs))
                found[workload, dtype] = position[known]
    if not found:
        return Panel(name, spec["title"], "", pd.DataFrame(), words=NOTHING)
    edges = bin_edges(max(int(position.max(initial=0)) for position in found.values()))
    rows = []
    for (workload, dtype), position in found.items():
        head = {"model": workload.model, "task": workload.name, "group": dtype}
        for start, stop in pairwise(edges):
            label = str(start) if stop - start == 1 else f"{start}–{stop - 1}"
            count = int(((position >= start) & (position < stop)).sum())
            rows.append({**head, "bin": label, "first": start, "items": count})
        never = int((position == NEVER).sum())
        rows.append({**head, "bin": "never", "first": None, "items": never})
    table = pd.DataFrame(rows)
    first = next(iter(found))[0]
    drawn = table[(table["model"] == first.model) & (table["task"] == first.name)]
    dtypes = list(dict.fromkeys(drawn["group"]))
    style = dict(zip(dtypes, looks([{"dtype": dtype} for dtype in dtypes]), strict=True))
    never_words = "; ".join(
        f"{r['group']}: {r['items']} of {drawn[drawn['group'] == r['group']]['items'].sum()} never"
        for r in drawn[drawn["bin"] == "never"].to_dict("records")
    )
    note = f"{first.model}, {first.name}; the other tasks are in the CSV. {never_words}."
    alt = f"Histogram of the first differing token. {never_words}."
    return Panel(name, spec["title"], alt, table, histogram_figure(drawn, style), note=note)


def _gaps(name: str, spec: Spec, tables: Tables) -> Panel:
    """Share of positions by the gap of the two best probabilities, mean over items."""
    rows = []
    for workload, runs in _members(spec, tables):
        run = workload.loaded.runs[runs[0]]
        column = read_column(run, "top_logprobs")
        if run.top_k < 2:
            continue
        counts = []
        for row in range(len(workload.loaded.item_P)):
            best = np.exp(column.row(row).reshape(-1, run.top_k)[:, :2].astype(np.float64))
            inside = np.histogram(best[:, 0] - best[:, 1], GAP_EDGES)[0]
            # A response without positions has no share of them.
            counts.append(inside / len(best) if len(best) else np.full(len(inside), np.nan))
        share_PB = np.stack(counts)
        rng = np.random.default_rng([SEED, zlib.crc32(f"{name} {workload.name}".encode())])
        for place, (start, stop) in enumerate(pairwise(GAP_EDGES)):
            estimate = mean_over_items(share_PB[:, place], rng)
            head = {"row": workload.name, "gap_from": round(start, 4), "gap_to": round(stop, 4)}
            values = {"share": estimate.value, "low": estimate.low, "high": estimate.high}
            rows.append({**head, **values, "items": estimate.n})
    table = pd.DataFrame(rows)
    if table.empty:
        return Panel(name, spec["title"], "", table, words=NOTHING)
    figure, ax = canvas(COLUMN, 2.4)
    tasks = table.groupby("row", sort=False)
    for colour, dashes, (task, part) in zip(OTHER_COLOURS, DASHES, tasks, strict=False):
        ax.stairs(100 * part["share"], GAP_EDGES, color=colour, ls=dashes, label=str(task))
        low, high = (100 * np.append(part[name], part[name].iloc[-1]) for name in ("low", "high"))
        ax.fill_between(GAP_EDGES, low, high, step="post", color=colour, alpha=0.15, lw=0)
    ax.set_xlabel("gap of the two best probabilities")
    ax.set_ylabel("positions (%)")
    ax.legend(labelcolor=INK)
    within = table.groupby("row", sort=False)["share"].sum()
    listed = "; ".join(
        f"{task}: {share:.1%} of positions below 0.03" for task, share in within.items()
    )
    note = f"All positions of one run; mean over items, bands 95 %. {listed}."
    return Panel(name, spec["title"], f"Histogram of gaps. {listed}.", table, figure, note=note)


DRAWERS: Mapping[str, Any] = {
    "accuracies": _accuracies,
    "estimates": _estimates,
    "histogram": _histogram,
    "gaps": _gaps,
    "candidates": lambda name, spec, tables: candidates(name, spec, _members(spec, tables)),
}
