"""The report in the terminal: verdict, reasons, summary table, and where the page is."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nondet.report import tables
from nondet.report.page import heading
from nondet.report.sections import short_summary
from nondet.report.write import ReportResult

COLOURS = {"PASS": "green", "DIFFERENT": "red", "INCONCLUSIVE": "yellow"}


def print_report(result: ReportResult, console: Console | None = None) -> None:
    """Print the verdict and the summary table; narrow where there is no terminal, never cut."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, 200))
    short = short_summary(result.summary)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in zip(short.columns, tables.numeric(short), strict=True):
        table.add_column(heading(str(name)), justify="right" if right else "left")
    for row in tables.cells(short):
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    colour = COLOURS.get(result.verdict, "white")
    console.print(f"\n[bold {colour}]{result.verdict}[/]")
    for reason in result.reasons:
        console.print(f"  {escape(reason)}", highlight=False)
    console.print(f"Report: {escape(str(result.page))}", highlight=False, soft_wrap=True)
