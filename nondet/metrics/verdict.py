"""The verdict of a study: PASS, DIFFERENT or INCONCLUSIVE, with the reasons as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nondet.metrics.intervals import (
    LEVEL,
    Estimate,
    bonferroni,
    largest_unseen,
    needed,
    percent,
    share_of_rows,
)

PASS, DIFFERENT, INCONCLUSIVE = "PASS", "DIFFERENT", "INCONCLUSIVE"

# A pass must exclude that more than this share of items differs; it takes 29 items.
MAX_RATE = 0.10
# Fewer compared tokens than this say little, however many items there are.
MIN_TOKENS = 256


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on.

    runs, failed: complete and other runs. items, tokens: items whose responses can be compared to
    their end in every run, and tokens of the reference run. repeat_pairs, setting_pairs: (diverged,
    rows compared, label) of each pair of runs with the same or with different settings. noise:
    largest difference of log-probabilities over common prefixes (NaN if not known). errors:
    responses that ended in an error. undecided: comparisons of two responses of which one is cut
    before the other ends, and repeats_undecided: those of repeats. logprobs_compared,
    logprobs_common: positions at which both the reference and a run have a log-probability, and
    positions that they have in common. repeat_logprobs: (log-probabilities that differ, positions
    compared, label) of each pair of repeats, and repeats_common: positions that their tokens have
    in common. samples: rows an item.
    """

    runs: int
    failed: int
    items: int
    tokens: int
    repeat_pairs: Sequence[tuple[int, int, str]]
    setting_pairs: Sequence[tuple[int, int, str]]
    noise: float
    errors: int = 0
    undecided: int = 0
    repeats_undecided: int = 0
    logprobs_compared: int = 0
    logprobs_common: int = 0
    repeat_logprobs: Sequence[tuple[int, int, str]] = ()
    repeats_common: int = 0
    samples: int = 1
    max_rate: float = MAX_RATE


def decide(evidence: Evidence) -> tuple[str, list[str]]:
    """The verdict word and short sentences, the repeats first."""
    repeats = _repeat_sentences(evidence)
    moved = _worst(evidence.repeat_pairs)
    parted = _worst(evidence.setting_pairs)
    if evidence.runs < 2:
        word = "No run completed" if evidence.runs == 0 else "Only one run completed"
        return INCONCLUSIVE, [f"{word}: there is nothing to compare.", *_gaps(evidence)]
    if moved and evidence.setting_pairs and not _beyond(parted, moved, evidence):
        reasons = [*repeats, "The settings differ no more than repeats do: no verdict on them."]
        return INCONCLUSIVE, reasons + _gaps(evidence)
    if moved or parted:
        return DIFFERENT, [*repeats, *_settings(evidence, parted), *_gaps(evidence)]
    power = _power(evidence)
    if _gaps(evidence):
        return INCONCLUSIVE, [*_gaps(evidence), *repeats, *power]
    if largest_unseen(evidence.items) > evidence.max_rate:
        few = (
            f"Too few items: {evidence.items}, and {needed(evidence.max_rate)} are needed to "
            f"exclude that {evidence.max_rate:.0%} differ."
        )
        return INCONCLUSIVE, [few, *repeats, *power]
    if evidence.tokens < MIN_TOKENS:
        few = f"Too few tokens: {evidence.tokens} compared, at least {MIN_TOKENS} are needed."
        return INCONCLUSIVE, [few, *repeats, *power]
    return PASS, [*power, *repeats]


def _worst(pairs: Sequence[tuple[int, int, str]]) -> tuple[int, int, str] | None:
    """The pair with the largest share diverged, None when none did."""
    worst = max(pairs, key=lambda pair: pair[0] / max(pair[1], 1), default=None)
    return worst if worst is not None and worst[0] else None


def _beyond(
    parted: tuple[int, int, str] | None, moved: tuple[int, int, str], evidence: Evidence
) -> bool:
    """Whether the settings part on more items than repeats, beyond both intervals.

    The pair is the worst of many, so the level is that of Bonferroni for as many.
    """
    if parted is None:
        return False
    level = bonferroni(len(evidence.setting_pairs))
    return _share(parted, evidence, level).low > _share(moved, evidence, level).high


def _share(pair: tuple[int, int, str], evidence: Evidence, level: float = LEVEL) -> Estimate:
    return share_of_rows(pair[0], pair[1], pair[1] // evidence.samples, level)


def _noun(evidence: Evidence) -> str:
    return "responses" if evidence.samples > 1 else "items"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def _repeat_sentences(evidence: Evidence) -> list[str]:
    if not evidence.repeat_pairs:
        return ["No setting was repeated, so run-to-run noise is not known."]
    moved = [pair for pair in evidence.repeat_pairs if pair[0]]
    if not moved:
        return [_alike(evidence)]
    noun = _noun(evidence)
    return [
        f"Repeats of one setting already differ: {label}, {count} of {items} {noun}."
        for count, items, label in moved
    ]


def _alike(evidence: Evidence) -> str:
    """What is known of repeats of which none parts in a token."""
    pairs = _count(len(evidence.repeat_pairs), "pair")
    open_, finer = "", _worst(evidence.repeat_logprobs)
    if evidence.repeats_undecided:
        open_ = f"{_count(evidence.repeats_undecided, 'comparison')} cannot tell"
    if finer is not None:
        count, positions, label = finer
        said = f"Repeats agree in every token{' compared' if open_ else ''} ({pairs} of runs)"
        also = f" Of tokens, {open_}." if open_ else ""
        return (
            f"{said}, but not in every log-probability: {label}, {count:,} of {positions:,} "
            f"positions. So runs differ by themselves.{also}"
        )
    if open_:
        return f"Repeats do not differ ({pairs} of runs), but {open_}."
    known = sum(pair[1] for pair in evidence.repeat_logprobs)
    if evidence.repeats_common > known:
        return (
            f"Repeats are identical in every token ({pairs} of runs); log-probabilities could be "
            f"compared at {known:,} of {evidence.repeats_common:,} positions."
        )
    return f"Repeats are identical ({pairs} of runs)."


def _settings(evidence: Evidence, parted: tuple[int, int, str] | None) -> list[str]:
    if parted is None:
        return []
    pairs = sum(1 for pair in evidence.setting_pairs if pair[0])
    count, items, label = parted
    share = _share(parted, evidence)
    return [
        f"Settings differ in {pairs} of {len(evidence.setting_pairs)} pairs; most between {label}: "
        f"{count} of {items} {_noun(evidence)} ({percent(share.low)} to {percent(share.high)})."
    ]


def _power(evidence: Evidence) -> list[str]:
    bound = largest_unseen(evidence.items)
    words = [
        f"Nothing differs: 0 of {evidence.items} items in {evidence.runs} runs, so at most "
        f"{percent(bound)} of such items would differ (95 % confidence)."
    ]
    if evidence.noise == 0 and evidence.logprobs_compared < evidence.logprobs_common:
        words.append(
            "Log-probabilities are equal to the last bit where both runs have them: at "
            f"{evidence.logprobs_compared:,} of {evidence.logprobs_common:,} positions."
        )
    elif evidence.noise == 0:
        words.append("Log-probabilities are equal to the last bit.")
    elif evidence.noise > 0:
        words.append(
            f"Log-probabilities do differ, by up to {evidence.noise:.2g}: longer or other answers "
            "may part."
        )
    return words


def _gaps(evidence: Evidence) -> list[str]:
    words = []
    if evidence.failed:
        words.append(f"{evidence.failed} of {evidence.failed + evidence.runs} runs are missing.")
    if evidence.errors:
        words.append(f"{evidence.errors} responses ended in an error.")
    elif evidence.undecided:
        open_ = _count(evidence.undecided, "comparison")
        words.append(f"{open_} cannot tell: one response is cut before the other ends.")
    return words
