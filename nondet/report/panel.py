"""A figure with everything that belongs to it: caption, text alternative and its numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from nondet.csv_files import save_csv
from nondet.report.style import DTYPE_COLOURS, FAINT, INK, MUTED, PAPER

# What an inline drawing uses in place of fixed colours, so that it follows the page's theme.
THEME = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    PAPER: "var(--paper)",
    FAINT: "var(--line)",
    DTYPE_COLOURS["fp32"]: "var(--blue)",
}
PNG_DPI = 160
NOTEBOOK_DPI = 110


@dataclass(frozen=True, repr=False)
class Panel:
    """One figure of the report, or the words that stand where it cannot be drawn.

    name: stem of its files. alt: what the figure shows, for those who cannot see it.
    table: the numbers that were drawn. figure: None when there is nothing to draw; then
    ``words`` say why.
    """

    name: str
    title: str
    alt: str
    table: pd.DataFrame
    figure: Figure | None = None
    words: str = ""
    note: str = ""
    wide: bool = False
    _svg: list[str] = field(default_factory=list)

    @property
    def svg(self) -> str:
        """The figure as SVG text, drawn once. Raises ValueError when there is none."""
        if self.figure is None:
            raise ValueError(f"{self.name}: nothing was drawn")
        if not self._svg:
            self._svg.append(draw_svg(self.figure, self.name))
            # Laid out now: what is drawn later must not move, and laying out is slow.
            self.figure.set_layout_engine("none")
        return self._svg[0]

    def _repr_png_(self) -> bytes | None:
        """For notebooks: the figure as PNG."""
        if self.figure is None:
            return None
        out = BytesIO()
        self.figure.savefig(out, dpi=NOTEBOOK_DPI, facecolor="white", metadata={"Software": None})
        return out.getvalue()

    def _repr_markdown_(self) -> str | None:
        """For notebooks: the words where there is no figure."""
        return f"*{self.words}*" if self.figure is None else None

    def __repr__(self) -> str:
        return f"Panel({self.name}: {self.alt or self.words})"


def save(panel: Panel, folder: Path) -> list[Path]:
    """Write the panel's CSV and, where it was drawn, its PNG and SVG. Returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{panel.name}.csv"]
    save_csv(panel.table, paths[0])
    if panel.figure is None:
        return paths
    svg = folder / f"{panel.name}.svg"
    svg.write_text(panel.svg)
    png = folder / f"{panel.name}.png"
    panel.figure.savefig(png, dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return [*paths, png, svg]


def draw_svg(figure: Figure, name: str) -> str:
    """The figure as SVG text, the same bytes every time."""
    out = StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def inline(panel: Panel) -> str:
    """The panel as an SVG element for the page: theme colours, unique ids, a text alternative.

    Raises ValueError when the panel was not drawn.
    """
    svg = panel.svg[panel.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    for colour, variable in THEME.items():
        svg = re.sub(re.escape(colour), variable, svg, flags=re.I)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(
        r' id="([^"]+)"',
        lambda match: f' id="{panel.name}-{match[1]}"' if match[1] in used else "",
        svg,
    )
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{panel.name}-", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font-size: \1", svg)
    head = re.match(r"<svg[^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="([^"]+)"', head[0])
    assert box is not None
    width = float(box[1].split()[2])
    opening = (
        f'<svg viewBox="{box[1]}" role="img" aria-labelledby="alt-{panel.name}" '
        f'style="max-width:{width * 4 / 3:.0f}px" xmlns="http://www.w3.org/2000/svg" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink"><title id="alt-{panel.name}">'
        f"{_escape(panel.alt)}</title>"
    )
    return opening + svg[head.end() :]


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
