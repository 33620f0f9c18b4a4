"""The figure of the completions: how long all copies of one prompt stay together."""

from __future__ import annotations

import pandas as pd

from nondet.report.panel import Panel
from nondet.report.style import COLUMN, LINES, MUTED, OTHER_COLOURS, canvas, house

TITLE = "One prompt, many completions"


def panel(table: pd.DataFrame, parts: pd.DataFrame) -> Panel:
    """Completions still equal to the commonest one, by token position, one line a run."""
    # What was asked alone is a line at 1 (and a row of the table).
    greedy = table[(table["temperature"] == 0) & (table["largest_wave"] > 1)]
    alt = "Share of completions of one prompt still equal to the commonest, by token position."
    if greedy.empty:
        nothing = pd.DataFrame(columns=["run", "token", "share"])
        return Panel("completions", TITLE, alt, nothing, words="Everything was asked alone.")
    keys = ["study", "backend", "dtype", "kernels", "batching"]
    with house():
        runs = greedy.drop_duplicates(keys)
        figure, axis = canvas(COLUMN, 2.6 + 0.18 * len(runs))
        drawn = []
        for place, (_, run) in enumerate(runs.iterrows()):
            own = parts[(parts[keys] == run[keys]).all(axis=1)]
            steps = [(0, 1.0)]
            left = int(run["completions"])
            for position, count in zip(own["position"], own["completions"], strict=True):
                steps.append((int(position), steps[-1][1]))
                left -= int(count)
                steps.append((int(position), left / int(run["completions"])))
            steps.append((int(run["tokens"]), steps[-1][1]))
            name = f"{run['study']}, {run['kernels']}" + (
                ", fp32" if run["dtype"] == "fp32" else ""
            )
            if greedy["backend"].nunique() > 1:
                name = f"{run['backend']}, {name}"
            if run["batching"] == "continuous":
                name += ", continuous"
            # Lines at 1 lie on each other; dashes of growing length keep all of them visible.
            axis.plot(*zip(*steps, strict=True), color=OTHER_COLOURS[place % len(OTHER_COLOURS)],
                      linestyle=LINES[place % len(LINES)], linewidth=1 + 0.25 * place,
                      label=f"{name}: {run['unique']} of {run['completions']}")  # fmt: skip
            drawn += [{"run": name, "token": x, "share": round(y, 4)} for x, y in steps]
        axis.set_xlabel("token position, from 0")
        axis.set_ylabel("share equal to\nthe commonest so far")
        axis.set_ylim(0, 1.04)
        axis.grid(axis="y", color=MUTED, alpha=0.2, linewidth=0.5)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), title="different completions")
    return Panel("completions", TITLE, alt, pd.DataFrame(drawn), figure)
