"""Compare two runs or two studies: ``python -m nondet.compare A B``.

A and B are run folders or study folders. Runs of two studies are matched by the factors that vary
within either of them and by the repeat. Exit codes: 0 identical, 1 different, 2 usage (a folder
without runs, runs that must not be compared), 3 inconclusive.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nondet.metrics.gate import LEVELS, USAGE, Gate, Matched, decide, junit, rows_differing
from nondet.metrics.run_tables import run_labels
from nondet.metrics.sides import Difference, compare_stored
from nondet.runs import Run, incomparable
from nondet.study import Study, StudyError, load_study


def compare(
    a: Study, b: Study, *, level: str = "tokens", rate: float = 0.1, allow: float = 0.0
) -> Gate:
    """Compare two studies (a single run is a study of one run).

    Args:
        a, b: loaded studies.
        level: what must be equal: answers, tokens or logprobs (see ``gate.decide``).
        rate: the smallest share of differing items that must be visible, above 0, below 1.
        allow: share of differing items that is still let through.

    Raises:
        StudyError: nothing can be matched, or two runs are not comparable (names the field).
    """
    for one, two in zip(a.complete[:1], b.complete[:1], strict=False):
        reason = incomparable(one, two)
        if reason:
            raise StudyError(f"{one.folder} and {two.folder}: not comparable, {reason}")
    pairs, lone_a, lone_b = match(a, b)
    missing = [f"{run.id} did not complete: {run.record.get('reason')}." for run in a.failed]
    missing += [f"{run.id} did not complete: {run.record.get('reason')}." for run in b.failed]
    missing += [*a.absent("A"), *b.absent("B")]
    if not pairs and not missing:
        raise StudyError(f"{a.name} and {b.name}: no run of one has the factors of the other's")
    for side, lone in (("A", lone_a), ("B", lone_b)):
        missing += [f"{label} of {side} has no partner." for label in lone]
    labels = run_labels(a)
    matched = []
    for one, two in pairs:
        try:
            found = compare_stored(one, two)
        except ValueError as error:
            raise StudyError(f"{one.folder} and {two.folder}: not comparable, {error}") from None
        matched.append(Matched(labels[one.id], one.id, two.id, found))
    items = len(set(pairs[0][0].item_ids)) if pairs else 0
    sides = [_repeats(study, side, level) for study, side in ((a, "A"), (b, "B"))]
    controls = [control for found, _ in sides for control in found]
    code, reasons = decide(matched, controls, items, missing, level=level, rate=rate, allow=allow)
    reasons += [sentence for _, sentences in sides for sentence in sentences]
    return Gate(code, reasons, level, rate, items, matched, lone_a, lone_b, allow)


def match(a: Study, b: Study) -> tuple[list[tuple[Run, Run]], list[str], list[str]]:
    """Complete runs of both with the same varying factors and repeat, and labels of the rest."""
    names = tuple(dict.fromkeys([*a.factors, *b.factors]))

    def key(run: Run) -> tuple[str, ...]:
        return (*(repr(run.factors.get(name)) for name in names), str(run.repeat))

    # Single runs are partners whatever they are; what is left of two studies is not.
    if len(a.complete) == len(b.complete) == len(a.runs) == len(b.runs) == 1:
        return [(a.complete[0], b.complete[0])], [], []
    partners = {key(run): run for run in b.complete}
    pairs = [(run, partners[key(run)]) for run in a.complete if key(run) in partners]
    taken_a, taken_b = {one.id for one, _ in pairs}, {two.id for _, two in pairs}
    labels_a, labels_b = run_labels(a), run_labels(b)
    return (
        pairs,
        [labels_a[run.id] for run in a.complete if run.id not in taken_a],
        [labels_b[run.id] for run in b.complete if run.id not in taken_b],
    )


def _repeats(study: Study, side: str, level: str) -> tuple[list[tuple[int, int, str]], list[str]]:
    """(rows that differ at the level, rows, label) of every repeat against the first of its
    setting, and sentences on those that differ in log-probabilities alone."""
    settings: dict[str, list[Run]] = {}
    for run in sorted(study.complete, key=lambda run: run.repeat):
        settings.setdefault(repr(study.setting_key(run)), []).append(run)
    labels = run_labels(study)
    found, sentences = [], []
    for runs in settings.values():
        for run in runs[1:]:
            one = compare_stored(runs[0], run)
            found.append((rows_differing(one, level), one.items, f"{side}, {study.label(runs[0])}"))
            sentences += finer(one, f"{labels[run.id]} of {side}", level)
    return found, sentences


def finer(found: Difference, label: str, level: str) -> list[str]:
    """A sentence where a repeat agrees in tokens, the level that was asked for, and not in
    log-probabilities: then runs differ by themselves, though the tokens do not show it."""
    if level != "tokens" or rows_differing(found, level) or not found.logprobs_differ:
        return []
    # What an error cut off is not known to be repeated.
    every = "every token" if found.identical == found.items else "every token compared"
    return [
        f"{label} repeats {every}, but at {found.logprobs_differ:,} of "
        f"{found.common_tokens:,} positions not the log-probability."
    ]


def print_gate(gate: Gate) -> None:
    """The outcome as text: word, reasons, one line a pair of runs."""
    print(gate.word)
    for reason in gate.reasons:
        print(f"  {reason}")
    for pair in gate.matched:
        found = pair.difference
        first = "" if not found.diverged else f", first at token {found.median_first:g}"
        print(
            f"  {pair.label}: {found.diverged} of {found.items} diverged{first}; "
            f"{found.answers_differ} answers differ; accuracy {found.accuracy_a:.3f} and "
            f"{found.accuracy_b:.3f} (McNemar p {found.mcnemar_p:.2g}); largest |dlogprob| "
            f"{found.logprobs['max_abs_dlogprob']:.3g}; KL {found.kl_mean:.2g}"
        )


def parser(name: str, text: str) -> argparse.ArgumentParser:
    """Arguments shared with ``nondet.check``."""
    made = argparse.ArgumentParser(prog=f"python -m nondet.{name}", description=text)
    made.add_argument("--level", choices=LEVELS, default="tokens", help="what must be equal")
    made.add_argument(
        "--rate", type=share, default=0.1, help="smallest differing share that must be visible"
    )
    made.add_argument(
        "--allow", type=allowed, default=0.0, help="share of differing items that is let through"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the outcome as JSON")
    made.add_argument("--junit", type=Path, metavar="FILE", help="write the outcome as JUnit XML")
    return made


def share(text: str) -> float:
    """A share above 0 and below 1. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and below 1")
    return value


def allowed(text: str) -> float:
    """A share from 0, below 1. Raises ArgumentTypeError."""
    return 0.0 if text in ("0", "0.0") else share(text)


def write_outputs(gate: Gate, options: argparse.Namespace, more: dict[str, Any]) -> None:
    """The JSON and JUnit files that were asked for."""
    if options.json is not None:
        options.json.write_text(json.dumps({**gate.to_dict(), **more}, indent=1) + "\n")
    if options.junit is not None:
        options.junit.write_text(junit(gate))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    made = parser("compare", "Compare two runs or two studies.")
    made.add_argument("a", type=Path)
    made.add_argument("b", type=Path)
    options = made.parse_args(arguments)
    try:
        a, b = load_study([options.a]), load_study([options.b])
        gate = compare(a, b, level=options.level, rate=options.rate, allow=options.allow)
        write_outputs(gate, options, {"a": str(options.a), "b": str(options.b)})
    except (StudyError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print_gate(gate)
    return gate.exit_code


if __name__ == "__main__":
    sys.exit(main())
