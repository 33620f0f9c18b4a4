"""The page of one machine's one-factor comparisons, every number from its CSVs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from experiments.markdown import percent, table, where

NAMES = {"cache": "KV cache", "padding": "padding", "batch_size": "batch size",
         "attention": "attention", "dtype": "number format", "kernels": "kernels",
         "repeat": "nothing (repeat)"}  # fmt: skip
# Comparisons of a context by their factor; invariant kernels bring their own attention.
STEPS = {"cache": 2, "padding": 2, "batch_size": 2, "attention": 1, "repeat": 1}
OWN = ("attention",)


def page(out: Path) -> str:
    """README.md of a folder with causes.csv, answer.csv and machine.json."""
    causes, answer = pd.read_csv(out / "causes.csv"), pd.read_csv(out / "answer.csv")
    parts = ["# Which factor alone moves bits, and which moves tokens\n"]
    parts += [where(out / "machine.json") + "\n"]
    parts += ["Made by [experiments/batch_size](../../../../experiments/batch_size/README.md).\n"]
    parts += [_answer(answer), _said(answer, causes), "## Every comparison\n", _causes(causes)]
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


def _said(answer: pd.DataFrame, causes: pd.DataFrame) -> str:
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
    said += [f"- {line}" for line in (*_controls(answer), *absent(causes))]
    return "\n".join(said) + "\n"


def _controls(answer: pd.DataFrame) -> list[str]:
    """Did nothing move where nothing changed, and something where the format did?"""
    said = []
    for factor, must in (("repeat", "no"), ("dtype", "yes")):
        for r in answer[answer["factor"] == factor].itertuples():
            word = "held" if r.moves_bits == must else "**FAILED**"
            rule = "may move nothing" if must == "no" else "must move bits"
            said.append(f"Control {word}: {r.context}, {NAMES[factor]} {rule}.")
    return said


def absent(causes: pd.DataFrame) -> list[str]:
    """Comparisons that no two runs of the study allow."""
    said = []
    for context, part in causes.groupby("context", sort=False):
        there = part["factor"].value_counts()
        left = [
            NAMES[factor] + (f" ({there[factor]} of {steps} steps)" if factor in there else "")
            for factor, steps in STEPS.items()
            if there.get(factor, 0) < steps and not ("invariant" in context and factor in OWN)
        ]
        if left:
            said.append(f"Not compared, {context}: {', '.join(left)}.")
        if "repeat" not in there:
            # Two fresh processes that agree in every bit although something differed.
            alike = part.loc[part["bits"] == 0, "step"]
            if alike.empty:
                said.append(f"So in {context} nothing rules out that chance moved the bits.")
            else:
                said.append(
                    f"In {context} no run was repeated, but processes of their own agree in every "
                    f"bit ({alike.iloc[0]}): chance did not move those."
                )
    return said


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
