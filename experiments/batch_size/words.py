"""The page of one machine's one-factor comparisons, every number from its CSVs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.markdown import percent, table, where

NAMES = {"cache": "KV cache", "padding": "padding", "batch_size": "batch size",
         "attention": "attention", "dtype": "number format", "kernels": "kernels",
         "repeat": "nothing (repeat)"}  # fmt: skip


def page(out: Path) -> str:
    """README.md of a folder with causes.csv, answer.csv and machine.json."""
    causes, answer = pd.read_csv(out / "causes.csv"), pd.read_csv(out / "answer.csv")
    parts = ["# Which factor alone moves bits, and which moves tokens\n"]
    parts += [where(out / "machine.json") + "\n"]
    parts += ["Made by [experiments/batch_size](../../../../experiments/batch_size/README.md).\n"]
    parts += [_answer(answer), _said(answer), "## Every comparison\n", _causes(causes)]
    parts += ["![share of answers that part](figures/causes.png)\n"]
    return "\n".join(parts)


def _answer(answer: pd.DataFrame) -> str:
    contexts = list(dict.fromkeys(answer["context"]))
    rows = []
    for factor in NAMES:
        own = answer[answer["factor"] == factor].set_index("context")
        if own.empty:
            continue
        cells = []
        for context in contexts:
            if context not in own.index:
                cells.append("")
                continue
            r = own.loc[context]
            bits = "bits" if r["moves_bits"] == "yes" else "**nothing**"
            tokens = f" and tokens: {r['diverged']} of {r['items']} answers"
            share = f" ({percent(r['share_low'], r['share_high'])})"
            no_tokens = f", tokens: 0 of {r['items']}"
            cells.append(bits + (tokens if r["moves_tokens"] == "yes" else no_tokens) + share)
        rows.append([NAMES[factor], *cells])
    return table(["this alone moves", *contexts], rows)


def _said(answer: pd.DataFrame) -> str:
    said = []
    for context, part in answer.groupby("context", sort=False):
        kinds = {}
        tested = part[~part["factor"].isin(["repeat", "dtype", "kernels"])]
        for r in tested.itertuples():
            kind = (
                "tokens" if r.moves_tokens == "yes" else "bits" if r.moves_bits == "yes" else "none"
            )
            kinds.setdefault(kind, []).append(NAMES[str(r.factor)])
        words = [f"moves {kind}: {', '.join(kinds[kind])}" for kind in ("tokens", "bits") if
                 kind in kinds]  # fmt: skip
        if "none" in kinds:
            words.append(f"moves nothing: {', '.join(kinds['none'])}")
        said.append(f"- {context}: " + "; ".join(words) + ".")
    said.append(
        "- Controls: nothing may move when nothing changes (repeat), and the number format must."
    )
    return "\n".join(said) + "\n"


def _causes(causes: pd.DataFrame) -> str:
    rows = []
    for r in causes.itertuples():
        share = percent(r.share_low, r.share_high)
        first = "" if pd.isna(r.first) else f"{int(r.first)} / {int(r.median_first)}"
        parted = f"{r.diverged} of {r.items}"
        rows.append([r.context, r.step, parted, share, r.bits, first, f"{r.logprob:.2g}"])
    head = ["context", "one factor changes", "answers that part", "95 %", "items with other bits",
            "first / median token", "largest log-probability difference"]  # fmt: skip
    return table(head, rows)
