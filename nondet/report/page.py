"""index.html: one file that needs no network, from tables, panels and the viewer's data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import DictLoader, Environment, StrictUndefined

from nondet.report import tables
from nondet.report.context import Context
from nondet.report.panel import Panel, inline

SIGNS = {"PASS": "=", "DIFFERENT": "≠", "INCONCLUSIVE": "?"}
# Longer tables are cut in the page and whole in their CSV.
MOST_ROWS = 60


@dataclass
class Section:
    """One section of the page. tables, panels and details are as the template reads them."""

    id: str
    title: str
    lead: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list)
    panels: list[dict[str, Any]] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    viewer: dict[str, Any] | None = None


def table_entry(
    title: str, table: pd.DataFrame, note: str = "", file: str | None = None
) -> dict[str, Any]:
    """A table as the template reads it; ``file``: stem of its files below tables/."""
    shown = table.head(MOST_ROWS)
    if len(shown) < len(table):
        note = f"{note} The first {len(shown)} of {len(table):,} rows.".strip()
    right = tables.numeric(shown)
    columns = [
        {"name": heading(str(name)), "right": flush}
        for name, flush in zip(shown.columns, right, strict=True)
    ]
    kinds = (("csv", "CSV"), ("md", "Markdown"), ("tex", "LaTeX"))
    links = [{"kind": kind, "href": f"tables/{file}.{end}"} for end, kind in kinds] if file else []
    return {
        "title": title,
        "note": note,
        "columns": columns,
        "rows": tables.cells(shown),
        "links": links,
    }


def heading(name: str) -> str:
    """A column name in words."""
    words = {
        "div_percent": "% diverged",
        "div_low": "low",
        "div_high": "high",
        "acc_low": "low",
        "acc_high": "high",
        "tokens_per_s": "tokens/s",
        "first_token_s": "first token (s)",
        "weights_mb": "weights (MB)",
        "cache_mb": "cache (MB)",
        "peak_memory_mb": "memory (MB)",
        "peak_device_memory_mb": "GPU memory (MB)",
        "wall_s": "seconds",
        "p": "p (McNemar)",
    }
    return words.get(name, name.replace("_", " "))


def panel_entry(panel: Panel, facts: str) -> dict[str, Any]:
    """A panel as the template reads it."""
    kinds = (("png", "PNG"), ("svg", "SVG"), ("csv", "CSV"))
    drawn = panel.figure is not None
    links = [{"kind": kind, "href": f"figures/{panel.name}.{end}"} for end, kind in kinds]
    return {
        "name": panel.name,
        "title": panel.title,
        "svg": inline(panel) if drawn else "",
        "words": panel.words,
        "caption": f"{panel.note} {facts}" if drawn else "",
        "links": links if drawn else [],
    }


def control_entries(context: Context) -> list[dict[str, str]]:
    """The controls as sentences with a mark, failed ones first."""
    entries = []
    pairs = context.view.analysis.pairs.to_dict("records")
    identical = {f"{pair['label_a']} and {pair['label_b']}": pair["identical"] for pair in pairs}
    for row in context.view.analysis.controls.to_dict("records"):
        passed = bool(row["passed"])
        text = f"{row['control']}: {row['what']}"
        if row["control"] == "repeat":
            found = f"{row['diverged']:.0f} of {row['items']:.0f} items diverge"
            if not row["diverged"]:
                same = identical[row["what"]]
                found, open_ = f"identical in {same:.0f} items", row["items"] - same
                if open_:
                    found += f", {open_:.0f} were cut before the other ended and cannot tell"
                if row["logprobs_differ"]:
                    found += f", but {row['logprobs_differ']:,.0f} log-probabilities differ"
            text = f"{row['what']}: {found}"
        mark = "held" if passed else "failed"
        entries.append({"state": "good" if passed else "bad", "mark": mark, "text": text})
    entries.sort(key=lambda entry: entry["state"] == "good")
    if not entries:
        text = "no setting was repeated, so run-to-run differences are not known"
        entries.append({"state": "open", "mark": "open", "text": text})
    return entries


def page(
    context: Context, sections: Sequence[Section], viewer: Mapping[str, Any] | None, footer: str
) -> str:
    """The whole page as HTML text."""
    analysis = context.view.analysis
    source = files("nondet.report") / "templates"
    names = ("index.html.j2", "macros.html.j2")
    loader = DictLoader({name: (source / name).read_text("utf-8") for name in names})
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # "</" would end the script element, whatever a model wrote.
    data = json.dumps(viewer, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    return environment.get_template("index.html.j2").render(
        name=analysis.name,
        verdict={
            "word": analysis.verdict,
            "sign": SIGNS.get(analysis.verdict, "?"),
            "sentences": [*analysis.reasons, *analysis.notes],
        },
        controls=control_entries(context),
        facts=context.facts,
        sections=sections,
        css=(source / "style.css").read_text("utf-8"),
        js=(source / "viewer.js").read_text("utf-8"),
        viewer_json=data.replace("<!--", "<\\u0021--") if viewer else "",
        footer=footer,
    )
