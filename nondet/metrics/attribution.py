"""Attribution: which single factor makes responses part, all others held equal?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

REPEAT = "repeat"


def one_factor_pairs(
    settings: Sequence[Mapping[str, Any]], factors: Sequence[str]
) -> dict[str, list[tuple[int, int]]]:
    """Pairs of runs that differ in exactly one factor, by that factor.

    Args:
        settings: factor values of each run.
        factors: the factors that vary in the study.

    Returns:
        For each factor the pairs (a, b), a < b; under "repeat" the pairs that differ in none.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = defaultdict(list)
    values = [tuple(repr(setting.get(name)) for name in factors) for setting in settings]
    for run, value in enumerate(values):
        groups[REPEAT, value].append(run)
        for place, name in enumerate(factors):
            groups[name, value[:place] + value[place + 1 :]].append(run)
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in (*factors, REPEAT)}
    for (name, _), members in groups.items():
        place = list(factors).index(name) if name != REPEAT else -1
        for at, a in enumerate(members):
            for b in members[at + 1 :]:
                if name == REPEAT or values[a][place] != values[b][place]:
                    pairs[name].append((a, b))
    return pairs
