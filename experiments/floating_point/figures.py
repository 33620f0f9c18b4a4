"""The figures of the floating-point demonstrations, from their CSVs alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from nondet.report.panel import Panel, save
from nondet.report.style import (
    COLUMN,
    DTYPE_COLOURS,
    DTYPE_HATCHES,
    DTYPE_MARKERS,
    INK,
    LINES,
    MUTED,
    PAPER,
    canvas,
    house,
)

DTYPES = ("bf16", "fp16", "fp32")


def draw(out: Path) -> None:
    """Draw what is there into OUT/figures."""
    panels = {"sums": [sums], "batches": [product, grid, accuracy], "split": [split]}
    with house():
        for name, makers in panels.items():
            path = out / f"{name}.csv"
            if path.exists():
                table = pd.read_csv(path)
                for make in makers:
                    save(make(table), out / "figures")


def sums(table: pd.DataFrame) -> Panel:
    """Distinct sums by dtype."""
    own = table[table["how"] != "in 1, 2, 4, ... pieces"]
    figure, axis = canvas(COLUMN, 2.3)
    dtypes = list(dict.fromkeys(own["dtype"]))
    sets = {"eight": "8 numbers, all 40,320 orders", "normal": "1,000 numbers, 10,000 orders"}
    for place, (what, words) in enumerate(sets.items()):
        part = own[own["numbers"] == what].set_index("dtype").loc[dtypes]
        y = np.arange(len(dtypes)) + (0.19 if place else -0.19)
        axis.barh(y, part["distinct"], 0.36, label=words, color="#0072b2" if place else PAPER,
                  edgecolor=INK, linewidth=0.8)  # fmt: skip
        for at, value in zip(y, part["distinct"], strict=True):
            axis.text(value, at, f" {value:,}", va="center", fontsize=8)
    axis.set_xlim(0, own["distinct"].max() * 1.12)
    axis.set_yticks(range(len(dtypes)), dtypes)
    axis.invert_yaxis()
    axis.set_xlabel("different sums of the same numbers")
    axis.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2, handlelength=1.2)
    alt = "Number of different sums of the same numbers over orders of adding, by number format."
    return Panel("sums", "Orders of adding", alt, own, figure)


def product(table: pd.DataFrame) -> Panel:
    """Elements of a product's row that change with the number of rows."""
    own = table[table["operation"].str.startswith("product") & table["differing"].notna()]
    names = list(dict.fromkeys(own["operation"]))
    figure, axis = canvas(COLUMN, 2.8)
    for dtype in DTYPES:
        for place, name in enumerate(names):
            for kernels in ("default", "invariant"):
                part = own[(own["dtype"] == dtype) & (own["operation"] == name)
                           & (own["kernels"] == kernels)]  # fmt: skip
                ours = kernels == "invariant"
                axis.plot(part["rows"], part["differing"] / part["elements"],
                          marker=DTYPE_MARKERS[dtype], color=DTYPE_COLOURS[dtype],
                          mfc=PAPER if ours else DTYPE_COLOURS[dtype], linestyle=LINES[place],
                          label=None if place else f"{dtype}, {kernels}")  # fmt: skip
    axis.set_xscale("log", base=2)
    sizes = [size for size in sorted(own["rows"].unique()) if size != 3]
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    # One element in a thousand is as much a break as all of them.
    axis.set_yscale("symlog", linthresh=1e-3)
    axis.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylim(-1e-4, 1.4)
    words = [name.removeprefix("product ") for name in names]
    axis.set_xlabel(f"rows in the batch (solid: {words[0]}, dashed: {words[-1]})")
    axis.set_ylabel("elements of the first row\nwith other bits than alone")
    axis.grid(axis="y", color=MUTED, alpha=0.2, linewidth=0.5)
    axis.legend(loc="lower center", bbox_to_anchor=(0.43, 1.0), ncols=3)
    alt = "Share of elements of one row of a matrix product that change with the number of rows."
    return Panel("product", "One row of a product", alt, own, figure)


def grid(table: pd.DataFrame) -> Panel:
    """Every operation and dtype against batch size: share of elements with other bits."""
    own = table[table["rows"] > 1].copy()
    own["share"] = own["differing"] / own["elements"]
    lines = [(op, dtype) for op in dict.fromkeys(own["operation"]) for dtype in DTYPES]
    sizes = sorted(own["rows"].unique())
    figure, axis = canvas(COLUMN, 0.19 * len(lines) + 1.6)
    for kernels, mark, size in (("default", "s", 8.5), ("invariant", "o", 4.5)):
        for y, (operation, dtype) in enumerate(lines):
            part = own[(own["operation"] == operation) & (own["dtype"] == dtype)
                       & (own["kernels"] == kernels)].set_index("rows")  # fmt: skip
            for x, rows in enumerate(sizes):
                share = part["share"].get(rows, np.nan)
                if np.isnan(share):
                    continue
                colour = INK if kernels == "default" else "#d55e00"
                if kernels == "default" and share > 0:
                    axis.plot(x, y, mark, markersize=size, color=colour, mec=colour,
                              alpha=0.25 + 0.75 * share)  # fmt: skip
                elif kernels == "default":
                    axis.plot(x, y, ".", markersize=2, color=MUTED)
                elif share > 0:
                    axis.plot(x, y, mark, markersize=size, color=colour, mec=PAPER)
    axis.set_yticks(range(len(lines)), [f"{op}, {dtype}" for op, dtype in lines], fontsize=7)
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=7, rotation=90)
    axis.set_xlim(-0.6, len(sizes) - 0.4)
    axis.set_ylim(len(lines) - 0.4, -0.6)
    axis.set_xlabel("rows, sequences or queries computed together\n"
                    "square: other bits than alone (darker: more elements)\n"
                    "point: the same bits; circle: other bits, our kernels", x=0.25)  # fmt: skip
    axis.tick_params(length=0)
    for y in range(3, len(lines), 3):
        axis.axhline(y - 0.5, color=MUTED, linewidth=0.4)
    alt = "Which operations change the first row's bits at which batch size, default kernels."
    return Panel("grid", "Operations and batch sizes", alt, own, figure)


def accuracy(table: pd.DataFrame) -> Panel:
    """Distance from float64, default beside invariant kernels."""
    own = table[table["error"].notna() & (table["rows"] == 1)]
    wide = own.pivot_table(index=["operation", "dtype"], columns="kernels", values="error",
                           sort=False).reset_index()  # fmt: skip
    floor = own.groupby(["operation", "dtype"], sort=False)["floor"].first().reset_index()
    wide = wide.merge(floor)
    names = list(dict.fromkeys(wide["operation"]))
    figure, axis = canvas(COLUMN, 0.42 * len(names) + 1.0)
    for place, dtype in enumerate(DTYPES):
        part = wide[wide["dtype"] == dtype]
        y = np.array([names.index(name) for name in part["operation"]]) + 0.24 * (place - 1)
        colour, mark = DTYPE_COLOURS[dtype], DTYPE_MARKERS[dtype]
        axis.plot(part["floor"], y, "|", color=MUTED, markersize=9,
                  label="best possible" if place == 2 else None)  # fmt: skip
        axis.plot(part["default"], y, mark, color=colour, markersize=5, label=f"{dtype}, default")
        axis.plot(part["invariant"], y, mark, color=colour, mfc="none", markersize=8.5,
                  label=f"{dtype}, invariant")  # fmt: skip
    axis.set_xscale("log")
    # Plain numbers: the house style draws no mathematics.
    axis.xaxis.set_major_formatter(lambda value, place: f"{value:.0e}".replace("e-0", "e-"))
    axis.minorticks_off()
    axis.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
    axis.invert_yaxis()
    axis.set_xlabel("distance from float64, relative")
    axis.legend(loc="upper center", bbox_to_anchor=(0.35, -0.16), ncols=3, fontsize=7,
                columnspacing=1)  # fmt: skip
    alt = "Relative distance from float64 of default and invariant kernels, by operation and dtype."
    return Panel("accuracy", "Accuracy beside invariance", alt, wide, figure)


def split(table: pd.DataFrame) -> Panel:
    """80 cached + 48 new tokens against 128 new: share of elements with other bits."""
    ways = list(dict.fromkeys(table["way"]))
    figure, axis = canvas(COLUMN, 2.6)
    for place, dtype in enumerate(DTYPES):
        part = table[table["dtype"] == dtype].set_index("way").loc[ways]
        share = part["differing"] / part["elements"]
        y = np.arange(len(ways)) + 0.26 * (place - 1)
        axis.barh(y, share, 0.24, color=DTYPE_COLOURS[dtype], edgecolor=INK, linewidth=0.6,
                  hatch=DTYPE_HATCHES[dtype], label=dtype)  # fmt: skip
        for at, value, count in zip(y, share, part["differing"], strict=True):
            axis.text(value + 0.01, at, f"{count:,}", va="center", fontsize=7.5)
    axis.set_yticks(range(len(ways)), [way.replace(", ", ",\n") for way in ways])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12)
    axis.set_xlabel(f"elements with other bits, of {int(table['elements'].iloc[0]):,}")
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    alt = "Share of attention outputs that differ between 80 cached + 48 new and 128 new tokens."
    return Panel("split", "80 + 48 against 128", alt, table, figure)
