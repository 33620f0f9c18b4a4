"""The report of a scale: one page, every table as CSV, Markdown and LaTeX, every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import DictLoader, Environment, StrictUndefined

import nondet
from experiments.yuan2025 import claims, departures, figures, ordering, published
from experiments.yuan2025.matrix import Scale
from experiments.yuan2025.numbers import SEED, Workload, value_of, workloads
from experiments.yuan2025.results import Result, load_elsewhere, load_results
from experiments.yuan2025.tables import Tables, specs
from nondet.metrics.divergence import against
from nondet.metrics.intervals import share_of_known
from nondet.report import tables as files_of
from nondet.report.context import hardware, software
from nondet.report.page import Section, panel_entry, table_entry
from nondet.report.panel import Panel, save
from nondet.report.style import house

SIGNS = {"HOLDS": ">", "DOES NOT HOLD": "≯", "NOT DECIDED": "?"}


@dataclass(frozen=True)
class Written:
    """What a report came to: its page, and a short text for the terminal and summary.md."""

    page: Path
    text: str


def write_report(scale: Scale, folder: Path, out: Path) -> Written:
    """Make the report of the runs that ``folder``/cells.json names, into ``out``."""
    results = load_results(scale, folder)
    read = workloads(results)
    tables = Tables(scale, results, read, load_elsewhere(folder))
    named = all_tables(tables)
    with house():
        panels = {name: figures.make(name, tables) for name in specs("figures")}
        for panel in panels.values():
            save(panel, out / "figures")
        for name, table in named.items():
            files_of.save(table, out / "tables", name)
        html = _page(tables, named, panels)
    page = out / "index.html"
    page.write_text(html, encoding="utf-8")
    text = _text(tables, named)
    (out / "summary.md").write_text(text, encoding="utf-8")
    return Written(page, text)


def all_tables(tables: Tables) -> dict[str, pd.DataFrame]:
    """Every table of the report by the stem of its files."""
    found = {name: tables.make(name) for name in specs("tables")}
    found["ordering"] = ordering.ordering(tables.workloads)
    found["controls"] = controls(tables.workloads)
    found["departures"] = departures.confounders(r.run for r in tables.results if r.run)
    found["method"] = departures.method()
    found["cells"] = cells(tables.results)
    found["suspects"] = published.suspects()
    return found


def cells(results: Sequence[Result]) -> pd.DataFrame:
    """One row a cell of the scale: its run, or why there is none."""
    rows = [
        {
            "arm": r.cell.arm,
            "model": r.cell.model,
            "task": r.cell.task,
            "GPU type": r.cell.hardware,
            **{key: value_of(r, key) for key in ("dtype", "kernels", "gpus", "batch_size")},
            "run": r.run.id if r.run else "",
            "note": r.reason,
        }
        for r in results
    ]
    return pd.DataFrame(rows)


def controls(read: Sequence[Workload]) -> pd.DataFrame:
    """Each repeat against the first run of its setting: items that part, with the interval."""
    rows = []
    for workload in read:
        runs, firsts = workload.loaded.runs, {}
        # The GPU type is no factor of a run, and no repeat is one of another machine's run.
        keys = [
            str([result.cell.hardware, sorted((k, str(v)) for k, v in run.factors.items())])
            for result, run in zip(workload.results, runs, strict=True)
        ]
        for place, run in enumerate(runs):
            if run.repeat == 0:
                firsts.setdefault(keys[place], place)
        for place, run in enumerate(runs):
            if run.repeat == 0 or keys[place] not in firsts:
                continue
            found = against(workload.loaded.forest, firsts[keys[place]])
            parted = found.diverged[:, place]
            # An error says nothing of what the repeat would have answered.
            known = parted | found.identical[:, place]
            share = share_of_known(parted, known, workload.loaded.item_P)
            rows.append(
                {
                    "model": workload.model,
                    "task": workload.name,
                    **{k: run.factors.get(k) for k in ("dtype", "kernels", "gpus", "batch_size")},
                    "items": share.n,
                    "parted": int(parted.sum()),
                    "percent": 100 * share.value,
                    "low": 100 * share.low,
                    "high": 100 * share.high,
                }
            )
    names = ["model", "task", "dtype", "kernels", "gpus", "batch_size"]
    return pd.DataFrame(rows, columns=[*names, "items", "parted", "percent", "low", "high"])


def _control_entries(table: pd.DataFrame) -> list[dict[str, str]]:
    if table.empty:
        return [{"state": "open", "mark": "open", "text": "no repeat finished"}]
    entries = []
    for row in table.to_dict("records"):
        words = f"{row['task']}, {row['dtype']}, {row['kernels']}, gpus {row['gpus']}"
        words += f", batch size {row['batch_size']}: {row['parted']} of {row['items']} items part"
        state, mark = ("good", "held") if row["parted"] == 0 else ("bad", "failed")
        if not row["items"]:
            state, mark = "open", "open"
        entries.append({"state": state, "mark": mark, "text": f"the same setting again, {words}"})
    return entries


def facts(tables: Tables) -> str:
    """Runs, hardware and versions in one line."""
    runs = [result.run for result in tables.results if result.run is not None]
    items = "; ".join(
        f"{len(set(w.loaded.runs[0].item_ids))} items of {w.name}" for w in tables.workloads
    )
    parts = [f"{len(runs)} of {len(tables.results)} runs of scale {tables.scale.name}"]
    parts += [items] if items else []
    parts += [" and ".join(hardware(runs)), ", ".join(software(runs))] if runs else []
    return "; ".join(parts) + "."


def _sections(
    tables: Tables, named: Mapping[str, pd.DataFrame], panels: Mapping[str, Panel]
) -> list[Section]:
    line = facts(tables)
    found = [_section("ordering", "Does the published ordering hold?", named)]
    for name, spec in specs("tables").items():
        lead = f"Needs {spec['runs']} runs of the published matrix. Ours first, then the paper's."
        found.append(_section(name, spec["title"], named, lead))
    drawn = [panel_entry(panel, line) for panel in panels.values()]
    found.append(Section("figures", "Figures", panels=drawn))
    departed = _section("departures", "What differs from the published runs", named)
    departed.tables.append(table_entry("Of the method", named["method"], file="method"))
    departed.tables.append(
        table_entry("Doubtful published cells", named["suspects"], file="suspects")
    )
    found.append(departed)
    ran = _section("cells", "What ran and what did not", named)
    ran.tables.append(table_entry("Repeats", named["controls"], file="controls"))
    return [*found, ran]


def _section(name: str, title: str, named: Mapping[str, pd.DataFrame], lead: str = "") -> Section:
    table = named[name].dropna(axis=1, how="all")
    note = "" if len(table) else "no row"
    return Section(name, title, lead, [table_entry(title, table, note, name)])


def _page(tables: Tables, named: Mapping[str, pd.DataFrame], panels: Mapping[str, Panel]) -> str:
    """The page, on the templates of nondet.report."""
    source = files("nondet.report") / "templates"
    templates = {
        name: (source / name).read_text("utf-8") for name in ("index.html.j2", "macros.html.j2")
    }
    environment = Environment(
        loader=DictLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    word = claims.verdict(named["ordering"])
    return environment.get_template("index.html.j2").render(
        name="Yuan et al. 2025, " + tables.scale.name,
        verdict={
            "word": word,
            "sign": SIGNS[word],
            "sentences": [tables.scale.about, *claims.sentences(named["ordering"])],
        },
        controls=_control_entries(named["controls"]),
        facts=facts(tables),
        sections=_sections(tables, named, panels),
        css=(source / "style.css").read_text("utf-8"),
        js="",
        viewer_json="",
        footer=f"nondet {nondet.__version__}, seed {SEED}. Intervals are 95 %.",
    )


def _text(tables: Tables, named: Mapping[str, pd.DataFrame]) -> str:
    """summary.md: the verdict in words, how much ran, and a list of the tables."""
    order = named["ordering"]
    lines = [f"# Yuan et al. 2025, {tables.scale.name}: {claims.verdict(order)}", ""]
    lines += [facts(tables), ""]
    lines += [f"- {sentence}" for sentence in claims.sentences(order)]
    missing: dict[str, int] = {}
    for result in tables.results:
        if result.run is None:
            missing[result.reason] = missing.get(result.reason, 0) + 1
    lines += [f"- {count} runs missing: {reason}" for reason, count in missing.items()]
    lines += ["", files_of.markdown(_overview(tables, named))]
    return "\n".join(lines)


def _overview(tables: Tables, named: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row a table: how many of its numbers are ours, and where it lies."""
    rows: list[dict[str, Any]] = []
    for name, spec in specs("tables").items():
        table = named[name]
        both = table["ours"].notna() & table["published"].notna()
        rows.append(
            {
                "table": spec["title"],
                "ours": int(table["ours"].notna().sum()),
                "published": int(table["published"].notna().sum()),
                "side by side": int(both.sum()),
                "file": f"tables/{name}.md",
            }
        )
    return pd.DataFrame(rows)
