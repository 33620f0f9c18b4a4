"""The comparisons of ordering.py in words: of each, of each claim, and of all of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nondet.metrics.intervals import largest_unseen

HOLDS, REVERSED, OPEN, SAME = "holds", "reversed", "not decided", "no difference seen"
SMALLER, MORE = "smaller batches vary more", "more GPUs vary more"
# What the paper claims; the verdict rests on these.
CLAIMS = ("bf16 parts more than fp16", "fp16 parts more than fp32", SMALLER, MORE)
LIKE = "layercast is like fp32"


def says(items: int, low: float, high: float, nothing: bool) -> str:
    """A verdict on ``more - less`` from its interval; ``nothing``: no item differs."""
    if not items:
        return OPEN
    # First: where all items say the same, resampling sees no spread and gives no interval.
    if nothing:
        return SAME
    if np.isnan(low) or np.isnan(high):
        return OPEN
    if low > 0:
        return HOLDS
    return REVERSED if high < 0 else OPEN


def sentences(table: pd.DataFrame) -> list[str]:
    """The table in words, one sentence a claim."""
    found = []
    for claim, part in table.groupby("claim", sort=False):
        counts = part["says"].value_counts()
        named = [
            f"{word} in {counts[word]}" for word in (HOLDS, REVERSED, OPEN, SAME) if word in counts
        ]
        words = f"{claim}: {', '.join(named)} of {len(part)} comparisons{_largest(part)}"
        if claim == LIKE:
            bound = 100 * largest_unseen(int(part["items"].min()))
            words = words.replace(HOLDS, "FP32 parts more").replace(
                REVERSED, "layercast parts more"
            )
            words += f"; with so many items a share below {bound:.0f} % may go unseen"
            if part["more"].str.contains("(", regex=False).any():
                words += "; the engines differ, too, so this is not the format alone"
        words = _formats_in_capitals(words)
        found.append(words[0].upper() + words[1:] + ".")
    left = [claim for claim in CLAIMS if claim not in set(table["claim"])]
    if left:
        named = _formats_in_capitals(", ".join(left))
        found.append(f"Not compared, since fewer than two settings finished on a side: {named}.")
    return found


def _formats_in_capitals(words: str) -> str:
    for name in ("bf16", "fp16", "fp32"):
        words = words.replace(name, name.upper())
    return words


def _largest(part: pd.DataFrame) -> str:
    """The largest difference of a claim, with its interval; empty where none is known."""
    known = part[part["difference"].notna()]
    if known.empty:
        return ""
    row = known.iloc[int(known["difference"].abs().to_numpy().argmax())]
    unit = "points" if row["metric"] == "div_percent" else "x 1e-4"
    where = f"{row['task']}, {row['dtype']}" if row["dtype"] else str(row["task"])
    return (
        f"; the largest difference is {row['difference']:.3g} {unit} "
        f"({row['low']:.3g} to {row['high']:.3g}, {row['items']} items of {where})"
    )


def verdict(table: pd.DataFrame) -> str:
    """HOLDS where every claim was compared and held everywhere; DOES NOT HOLD where one is
    reversed somewhere; else NOT DECIDED."""
    claims = table[table["claim"].isin(CLAIMS)]
    if (claims["says"] == REVERSED).any():
        return "DOES NOT HOLD"
    all_there = set(claims["claim"]) == set(CLAIMS)
    return "HOLDS" if all_there and (claims["says"] == HOLDS).all() else "NOT DECIDED"
