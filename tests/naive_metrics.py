"""A second implementation of the metrics in plain Python loops, for the tests alone.

Written from the definitions, with nothing shared with nondet.metrics.
"""

from __future__ import annotations

import math
from itertools import combinations


def pair(a, b, cut_a, cut_b):
    """(position or None, identical, cut) of two responses."""
    for place in range(max(len(a), len(b))):
        if place >= len(a) or place >= len(b):
            shorter_cut = cut_a if len(a) < len(b) else cut_b
            return (None, False, True) if shorter_cut else (place, False, False)
        if a[place] != b[place]:
            return place, False, False
    return None, True, bool(cut_a or cut_b)


def shared(a, b):
    count = 0
    for one, two in zip(a, b, strict=False):
        if one != two:
            break
        count += 1
    return count


def div_index(rows, cuts):
    """Earliest divergence of any two responses, None when no two part."""
    found = [
        pair(rows[a], rows[b], cuts[a], cuts[b])[0] for a, b in combinations(range(len(rows)), 2)
    ]
    found = [place for place in found if place is not None]
    return min(found) if found else None


def shared_by_all(rows):
    count = 0
    while all(len(row) > count for row in rows) and len({row[count] for row in rows}) == 1:
        count += 1
    return count


def unique(rows):
    return len({tuple(row) for row in rows})


def std(values, ddof=1):
    if len(values) <= ddof:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def mean(values):
    values = [value for value in values if value is not None and not math.isnan(value)]
    return math.fsum(values) / len(values) if values else None


def gap(a, b):
    """|a - b|; None when unknown."""
    if math.isnan(a) or math.isnan(b):
        return None
    return 0.0 if a == b else abs(a - b)


def kaplan_meier(times, states):
    """[(time, at risk, events, survival, incidence, finished)], status 0 cut, 1 parted, 2 done."""
    survival, both, incidence, done, rows = 1.0, 1.0, 0.0, 0.0, []
    for time in sorted(set(times)):
        at_risk = sum(1 for other in times if other >= time)
        events = sum(1 for t, s in zip(times, states, strict=True) if t == time and s == 1)
        ended = sum(1 for t, s in zip(times, states, strict=True) if t == time and s == 2)
        incidence += both * events / at_risk
        done += both * ended / at_risk
        survival *= 1 - events / at_risk
        both *= 1 - (events + ended) / at_risk
        rows.append((time, at_risk, events, survival, incidence, done))
    return rows


def kl(a, b):
    """KL over shared candidates plus one class for the rest; a, b: {id: logprob}."""
    both = [key for key in a if key in b and not math.isnan(a[key]) and not math.isnan(b[key])]
    if not both:
        return None
    p = [math.exp(a[key]) for key in both]
    q = [math.exp(b[key]) for key in both]
    p.append(max(1 - math.fsum(p), 0.0))
    q.append(max(1 - math.fsum(q), 0.0))
    total = 0.0
    for one, two in zip(p, q, strict=True):
        if one > 0:
            total += math.inf if two == 0 else one * math.log(one / two)
    return max(total, 0.0)


def one_factor(settings, factors):
    """Pairs that differ in one factor, by factor; "repeat" for those that differ in none."""
    found = {name: [] for name in (*factors, "repeat")}
    for a, b in combinations(range(len(settings)), 2):
        moved = [name for name in factors if settings[a][name] != settings[b][name]]
        if len(moved) < 2:
            found[moved[0] if moved else "repeat"].append((a, b))
    return found
