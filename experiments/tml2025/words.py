"""The page of one machine's completions and prices, every number from its CSVs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from experiments.markdown import percent, table, where
from experiments.tml2025.price import ARMS, ratio_of

STUDIES = {
    "alone": "waves of 1",
    "sizes": "waves of random size, the same prompt",
    "load": "waves of random size, random neighbours",
    "sampled": "temperature 1: must be many",
}
# Rows of price.csv that may be compared.
WORK = ["model", "engine", "sequences", "batch_size", "new_tokens", "options"]
POST = """Thinking Machines, "Defeating Nondeterminism in LLM Inference" (2025), reports 80
different completions of 1000 (Qwen3-235B, 1000 tokens, the first 102 equal in all) and 1 with
invariant kernels; and for 1000 sequences of 90 to 110 tokens of Qwen3-8B 26 s with vLLM's kernels,
55 s with unoptimised invariant ones and 42 s with a better attention: ratios of 2.12 and 1.62.
Other models and other machines than here."""


def page(out: Path) -> str:
    """README.md of a folder with completions.csv, machine.json and, where it was run, price.csv."""
    completions = pd.read_csv(out / "completions.csv")
    parts = ["# Completions of one prompt at temperature 0\n", where(out / "machine.json") + "\n"]
    parts += ["Made by [experiments/tml2025](../../../../experiments/tml2025/README.md).\n"]
    parts += [_completions(completions), _said(completions)]
    if (out / "failed.csv").exists():
        parts += [_failed(pd.read_csv(out / "failed.csv"))]
    if (completions["largest_wave"] > 1).any():
        parts += ["![completions still equal](figures/completions.png)\n"]
    if (out / "price.csv").exists():
        parts += ["## What invariance costs\n", _price(pd.read_csv(out / "price.csv"))]
    parts += ["## Beside the post\n", POST + "\n"]
    return "\n".join(parts)


def _completions(completions: pd.DataFrame) -> str:
    rows = []
    for r in completions.itertuples():
        what = STUDIES.get(str(r.study), str(r.study))
        if r.study != "alone":
            what += f", up to {r.largest_wave}"
        if r.batching == "continuous":
            # An endpoint has as many open requests as the batch size says, whatever is waiting.
            open_now = f"{r.batch_size} of {r.largest_wave}" if r.backend == "openai" else "all"
            what = f"{open_now} at once, random neighbours, the engine's scheduler"
        # Sampled completions do not share the fate of their wave.
        share = percent(r.differing_low, r.differing_high) + f"; {r.equal_waves:.3g}"
        share = "" if r.temperature else share
        alone = "" if pd.isna(r.as_alone) else int(r.as_alone)
        rows.append([
            what,
            f"{r.backend}, {r.dtype}, {r.kernels}" + (f", repeat {r.repeat}" if r.repeat else ""),
            r.completions, r.waves, f"**{r.unique}**", r.commonest, alone,
            f"{r.same_tokens} of {r.tokens}", share,
        ])  # fmt: skip
    head = ["company", "setting", "completions", "waves", "different", "commonest", "as alone",
            "first tokens equal in all", "not the commonest (95 %; n: equal waves)"]  # fmt: skip
    return table(head, rows)


def _said(completions: pd.DataFrame) -> str:
    greedy = completions[completions["temperature"] == 0]
    one = greedy[(greedy["kernels"] == "invariant") & (greedy["study"] != "alone")]
    said = []
    for r in one.itertuples():
        seen = f"a share of waves below {100 * r.unseen_below:.0f} % that answer otherwise"
        bound = "" if pd.isna(r.unseen_below) else (
            f"; with {r.waves} waves, {seen} could have gone unseen (one-sided, 95 %)"
        )  # fmt: skip
        name = f"{r.study}, all at once" if r.batching == "continuous" else r.study
        said.append(
            f"- {name}, {r.backend}, invariant kernels: {r.unique} of {r.completions}{bound}."
        )
    for r in greedy[greedy["as_alone"].isna()].itertuples():
        said.append(
            f"- {r.study}, {r.backend}, {r.dtype}, {r.kernels}: not asked alone, "
            "so there is no control."
        )
    said += _controls(completions)
    said.append(
        '- "as alone": completions equal to the one that the same setting gives by itself. '
        "How many are different is a count of this run, not an estimate."
    )
    return "\n".join(said) + "\n"


def _controls(completions: pd.DataFrame) -> list[str]:
    """Alone all repeats of a setting give one completion, sampled there must be many."""
    said = []
    alone, sampled = (completions[completions["study"] == name] for name in ("alone", "sampled"))
    setting = ["backend", "dtype", "kernels"]
    for (backend, kind, kernels), part in alone.groupby(setting, sort=False):
        other = (part["unique"] != 1) | (part["as_alone"] != part["completions"])
        word = "**FAILED**" if other.any() else "held"
        runs = f"{len(part)} run" + ("s" if len(part) > 1 else "")
        said.append(
            f"- Control {word}: alone, {backend}, {kind}, {kernels}, 1 completion in {runs}."
        )
    for r in sampled.itertuples():
        word = "held" if r.unique > 1 else "**FAILED**"
        said.append(f"- Control {word}: sampled, {r.backend}, {r.dtype}, more than 1 completion.")
    for backend in completions["backend"].unique():
        for name, part in (("alone", alone), ("sampled", sampled)):
            if not (part["backend"] == backend).any():
                said.append(f"- The control {STUDIES[name]} did not run with {backend}.")
    return said


def _failed(failed: pd.DataFrame) -> str:
    """Runs without completions, alike ones in one line, and why."""
    said = []
    for (backend, kernels, reason), part in failed.groupby(
        ["backend", "kernels", "reason"], sort=False
    ):
        studies = ", ".join(part["study"].unique())
        said.append(f"- Did not run: {backend}, {kernels} kernels ({studies}): {reason}")
    return "\n".join(said) + "\n"


def _price(price: pd.DataFrame) -> str:
    rows = []
    for key, part in price.groupby(WORK, sort=False):
        # Rounds are paired within a call of price.py: each of them begins anew at 0.
        call = (part["round"] == 0).groupby(part["kernels"]).cumsum()
        known = part.assign(call=call).dropna(subset=["seconds"]).set_index(["call", "round"])
        arms = {str(name): own["seconds"] for name, own in known.groupby("kernels")}
        work = f"{key[2]} x {key[4]}, batch {key[3]}"
        options = ", ".join(f"{name} {value}" for name, value in json.loads(key[5]).items())
        engine = f"{key[1]}, {options}" if options else key[1]
        cells = [_seconds(arms[name]) if name in arms else "did not run" for name in ARMS]
        if len(arms) == len(ARMS):
            default, ours = (arms[name] for name in ARMS)
            default, ours = default.align(ours, join="inner")
            ratio, rounds = ratio_of(ours.tolist(), default.tolist()), len(ours)
            said = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        else:
            said, rounds = part["reason"].dropna().iloc[0], len(known)
        rows.append([engine, key[0], work, *cells, said, rounds])
    head = ["engine", "model", "sequences x tokens", "default s", "invariant s",
            "ratio (95 %)", "rounds"]  # fmt: skip
    return table(head, rows) + f"\n{_rounds(price)}\n"


def _seconds(own: pd.Series) -> str:
    return f"{own.median():.2f} ({own.min():.2f} to {own.max():.2f})"


def _rounds(price: pd.DataFrame) -> str:
    said = "Medians of seconds (smallest to largest); the ratio is the geometric mean over rounds."
    for (kernels, model, *_), part in price.groupby(["kernels", *WORK]):
        made = sorted(part["tokens"].dropna().astype(int).unique())
        if len(made) > 1:
            # The same process, the same waves: only chance is left.
            counts = " and ".join(f"{count:,}" for count in made)
            said += (
                f" With {kernels} kernels the same waves of {model}, in one process, made {counts}"
            )
            said += " tokens in different rounds: there even equal calls did not agree."
    return said
