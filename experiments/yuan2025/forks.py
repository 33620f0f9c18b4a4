"""Where answers part: the candidates of every setting at one fork (figure 3, left)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.yuan2025.numbers import Workload, value_of
from experiments.yuan2025.tables import Spec
from nondet.metrics.divergence import div_index
from nondet.metrics.load import read_column
from nondet.metrics.prefix import NEVER
from nondet.report.panel import Panel
from nondet.report.style import (
    COLUMN,
    FAINT,
    INK,
    MUTED,
    OTHER_COLOURS,
    OTHER_MARKERS,
    canvas,
    shorten,
)
from nondet.report.viewer import decoder
from nondet.study import Study

# Candidates drawn at a fork.
CANDIDATES = 4


def candidates(name: str, spec: Spec, members: Sequence[tuple[Workload, list[int]]]) -> Panel:
    """The best candidates of every setting at the first place where one item's answers part."""
    for workload, runs in members:
        position = div_index(workload.loaded.forest, runs)
        parted = np.flatnonzero(position != NEVER)
        if len(runs) > 1 and len(parted):
            row = int(parted[0])
            return _fork(name, spec, workload, runs, row, int(position[row]))
    return Panel(name, spec["title"], "", pd.DataFrame(), words="No item's answers part.")


def _fork(
    name: str, spec: Spec, workload: Workload, runs: Sequence[int], row: int, position: int
) -> Panel:
    decode = decoder(Study("", tuple(workload.loaded.runs[:1])))
    rows = []
    for place in runs:
        run, result = workload.loaded.runs[place], workload.results[place]
        ids, logprobs = (read_column(run, c).row(row) for c in ("top_ids", "top_logprobs"))
        k = run.top_k
        if position * k >= len(ids):
            continue
        setting = f"{value_of(result, 'gpus')} x, batch {value_of(result, 'batch_size')}"
        for rank in range(min(k, CANDIDATES)):
            token = int(ids[position * k + rank])
            text = decode([token])[0] if decode else ""
            chance = float(np.exp(np.float64(logprobs[position * k + rank])))
            head = {"setting": setting, "rank": rank + 1, "token": token, "text": text}
            rows.append({**head, "probability": chance})
    item = workload.loaded.outcomes[0].keys[row]
    if not rows:
        said = f"No candidates were kept where item {item} of {workload.name} parts."
        return Panel(name, spec["title"], "", pd.DataFrame(), words=said)
    table = pd.DataFrame(rows)
    same: dict[str, Any] = {"task": workload.name, "item": item, "position": position}
    for place, (key, value) in enumerate(same.items()):
        table.insert(place, key, value)
    note = (
        f"Item {item} of {workload.name}, token {position} (from 0): one example, no estimate. "
        f"{len(runs)} settings."
    )
    alt = f"Probabilities of the candidates at token {position} of item {item}, by setting."
    return Panel(name, spec["title"], alt, table, _fork_figure(table), note=note)


def _fork_figure(table: pd.DataFrame) -> Figure:
    settings = list(dict.fromkeys(table["setting"]))
    figure, ax = canvas(COLUMN, 2.4)
    tokens = table.groupby("token")["probability"].max().nlargest(CANDIDATES).index
    for colour, marker, token in zip(OTHER_COLOURS, OTHER_MARKERS, tokens, strict=False):
        part = table[table["token"] == token]
        text = repr(part["text"].iloc[0]) if part["text"].iloc[0] else f"token {token}"
        places = [settings.index(setting) for setting in part["setting"]]
        line = {"color": colour, "label": shorten(text, 20), "lw": 0.8}
        ax.plot(places, part["probability"], f"{marker}-", mfc="none", **line)
    ax.set_xticks(range(len(settings)), settings, rotation=30, ha="right", color=MUTED)
    ax.set_ylabel("probability")
    ax.grid(axis="y", color=FAINT, lw=0.6)
    ax.legend(labelcolor=INK, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
