"""The gate: from differences between two runs or studies to one word and an exit code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from nondet.metrics.intervals import bonferroni, largest_unseen, needed, percent, share_of_rows
from nondet.metrics.sides import Difference

IDENTICAL, DIFFERENT, USAGE, INCONCLUSIVE = 0, 1, 2, 3
WORDS = {IDENTICAL: "IDENTICAL", DIFFERENT: "DIFFERENT", INCONCLUSIVE: "INCONCLUSIVE"}
LEVELS = ("answers", "tokens", "logprobs")


@dataclass(frozen=True)
class Matched:
    """Two runs with the same factors, and what differs between them."""

    label: str
    run_a: str
    run_b: str
    difference: Difference


@dataclass(frozen=True)
class Gate:
    """The outcome of a comparison; ``exit_code`` as in ``WORDS``."""

    exit_code: int
    reasons: list[str]
    level: str
    rate: float
    items: int
    matched: list[Matched] = field(default_factory=list)
    unmatched_a: list[str] = field(default_factory=list)
    unmatched_b: list[str] = field(default_factory=list)
    allow: float = 0.0

    @property
    def word(self) -> str:
        """IDENTICAL, DIFFERENT or INCONCLUSIVE."""
        return WORDS[self.exit_code]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; NaN becomes null."""
        return {
            "verdict": self.word,
            "exit_code": self.exit_code,
            "reasons": self.reasons,
            "level": self.level,
            "rate": self.rate,
            "allow": self.allow,
            "items": self.items,
            "items_needed": needed(self.rate),
            "largest_unseen_share": largest_unseen(self.items),
            "pairs": [
                {
                    "label": pair.label,
                    "run_a": pair.run_a,
                    "run_b": pair.run_b,
                    **_plain(pair.difference.to_dict()),
                }
                for pair in self.matched
            ],
            "unmatched_a": self.unmatched_a,
            "unmatched_b": self.unmatched_b,
        }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif isinstance(value, float) and (value != value or abs(value) == float("inf")):
            plain[name] = None if value != value else str(value)
        else:
            plain[name] = value
    return plain


def differing(found: Difference, level: str) -> int:
    """Rows (at level "logprobs" positions, when tokens agree) that differ at a level."""
    if level == "answers":
        return max(found.answers_differ, found.verdicts_differ)
    # Equal tokens with another answer or finish reason are a difference as well.
    # So are unequal lengths, also of cut responses: the limit is the same. After an error only
    # what was said before it counts (see ``Difference``).
    lengths = max(found.lengths_differ, found.finish_differ)
    rows = max(found.diverged, found.answers_differ, found.verdicts_differ, lengths)
    if level == "tokens" or rows:
        return rows
    return found.logprobs_differ


def rows_differing(found: Difference, level: str) -> int:
    """Rows that differ at a level, never positions."""
    if level == "logprobs":
        return max(differing(found, "tokens"), found.logprob_rows)
    return differing(found, level)


def undecided(found: Difference, level: str) -> list[str]:
    """Why two runs without a difference cannot tell whether they differ at a level."""
    words = []
    unknown = found.items - found.identical - found.diverged
    if level != "answers" and unknown:
        words.append(f"{unknown} responses are cut before the other ends: not decided.")
    if level != "answers" and not found.common_tokens:
        words.append("no token to compare.")
    if level == "logprobs" and not found.logprobs_compared:
        words.append("no log-probabilities to compare.")
    if found.errors:
        words.append(f"{found.errors} responses ended in an error.")
    return words


def decide(
    matched: Sequence[Matched],
    repeats: Sequence[tuple[int, int, str]],
    items: int,
    missing: Sequence[str],
    *,
    level: str = "tokens",
    rate: float = 0.1,
    allow: float = 0.0,
) -> tuple[int, list[str]]:
    """Exit code and reasons, the repeats first.

    Args:
        matched: compared pairs of runs.
        repeats: (diverged, items, label) of pairs of repeats within either side.
        items: distinct items compared.
        missing: sentences on runs that failed or have no partner.
        level: what must be equal: answers, tokens (and answers), or logprobs (and tokens).
        rate: the smallest share of differing items that the gate must be able to see.
        allow: share of differing items that is still let through, 0 to 1.
    """
    moved = max(repeats, key=lambda pair: pair[0] / max(pair[1], 1), default=(0, 0, ""))
    reasons = []
    if moved[0]:
        noun = _noun(moved[1], items)
        reasons.append(
            f"Repeats within one side already differ: {moved[2]}, {moved[0]} of {moved[1]} {noun}."
        )
    worst = max(matched, key=lambda pair: rows_differing(pair.difference, level), default=None)
    count = rows_differing(worst.difference, level) if worst else 0
    if worst is not None and count > allow * worst.difference.items:
        reasons.append(_sentence(worst, level, differing(worst.difference, level), items))
        rows = worst.difference.items
        # The pair is the worst of all that were compared.
        each = bonferroni(len(matched))
        beyond = share_of_rows(min(count, rows), rows, items, each).low
        if moved[0] and beyond <= share_of_rows(moved[0], moved[1], items, each).high:
            reasons.append("That is no more than repeats differ: not a finding about A and B.")
            return INCONCLUSIVE, reasons + list(missing)
        return DIFFERENT, reasons + list(missing)
    if moved[0] > allow * moved[1]:
        return (INCONCLUSIVE if matched else DIFFERENT), reasons + list(missing)
    return _not_different(matched, items, missing, level, rate, count)


def _not_different(
    matched: Sequence[Matched],
    items: int,
    missing: Sequence[str],
    level: str,
    rate: float,
    count: int,
) -> tuple[int, list[str]]:
    bound = largest_unseen(items)
    rows = max((pair.difference.items for pair in matched), default=items)
    seen = f"{count} of {rows} {_noun(rows, items)} differ in {level}"
    power = f"{seen}; a share above {percent(bound)} would have shown (95 % confidence)."
    if count:
        power = f"{seen}, which is allowed."
    want = f"To see a share of {percent(rate)}, {needed(rate)} items are needed."
    reasons = list(missing)
    unknown = sum(
        pair.difference.items - pair.difference.identical - pair.difference.diverged
        for pair in matched
    )
    if level != "answers" and unknown:
        reasons.append(f"{unknown} responses are cut before the other ends: not decided.")
    if level == "logprobs" and any(not pair.difference.logprobs_compared for pair in matched):
        reasons.append("A pair of runs has no log-probabilities to compare.")
    if level != "answers" and any(not pair.difference.common_tokens for pair in matched):
        reasons.append("A pair of runs has no token to compare.")
    errors = sum(pair.difference.errors for pair in matched)
    if errors:
        reasons.append(f"{errors} responses ended in an error.")
    if items < needed(rate):
        reasons.append(want)
    code = INCONCLUSIVE if reasons else IDENTICAL
    notes = [power] if reasons else [power, want]
    gaps = [pair.difference.logprobs["max_abs_dlogprob"] for pair in matched]
    moved = max((gap for gap in gaps if not math.isnan(gap)), default=0.0)
    if level == "tokens" and moved > 0:
        notes.append(f"Log-probabilities differ by up to {moved:.2g} under equal tokens.")
    return code, reasons + notes


def _noun(rows: int, items: int) -> str:
    return "responses" if rows > items else "items"


def _sentence(pair: Matched, level: str, count: int, items: int) -> str:
    found = pair.difference
    if level == "logprobs" and not differing(found, "tokens"):
        most = found.logprobs["max_abs_dlogprob"]
        return f"{pair.label}: {count} log-probabilities differ, by up to {most:.3g}."
    where = ""
    if found.diverged:
        where = f", first at token {found.median_first:g} (median)"
        where += f", {percent(found.low)} to {percent(found.high)} of them diverged"
    noun = _noun(found.items, items)
    return f"{pair.label}: {count} of {found.items} {noun} differ in {level}{where}."


def _fails(gate: Gate, pair: Matched) -> bool:
    """Whether a pair is a finding: beyond what is allowed, and not only what repeats do too."""
    beyond = rows_differing(pair.difference, gate.level) > gate.allow * pair.difference.items
    return beyond and gate.exit_code == DIFFERENT


def junit(gate: Gate) -> str:
    """The outcome as JUnit XML: one test case a pair of runs, and one for the whole."""
    failed = [pair for pair in gate.matched if _fails(gate, pair)]
    suite = ElementTree.Element(
        "testsuite",
        name="nondet",
        tests=str(len(gate.matched) + 1),
        failures=str(len(failed) + int(gate.exit_code == DIFFERENT)),
        errors="0",
        skipped=str(int(gate.exit_code == INCONCLUSIVE)),
    )
    for pair in gate.matched:
        case = ElementTree.SubElement(suite, "testcase", classname="nondet.pair", name=pair.label)
        count = differing(pair.difference, gate.level)
        if _fails(gate, pair):
            message = _sentence(pair, gate.level, count, gate.items)
            ElementTree.SubElement(case, "failure", message=message, type=gate.level)
    whole = ElementTree.SubElement(suite, "testcase", classname="nondet", name="verdict")
    if gate.exit_code == DIFFERENT:
        ElementTree.SubElement(whole, "failure", message=" ".join(gate.reasons), type=gate.level)
    if gate.exit_code == INCONCLUSIVE:
        ElementTree.SubElement(whole, "skipped", message=" ".join(gate.reasons))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
