"""Groups of runs over which a spread is taken: all settings, slices of a factor, repeats."""

from __future__ import annotations

from dataclasses import dataclass

from nondet.study import Study


@dataclass(frozen=True)
class Group:
    """Runs by their place in ``study.complete``; one run a setting, or the repeats of one.

    kind: "all", "factor" (all settings with ``factor`` = ``value``) or "repeats".
    """

    name: str
    kind: str
    factor: str
    value: str
    runs: tuple[int, ...]


def first_repeats(study: Study) -> tuple[int, ...]:
    """The first complete run of every setting, places in ``study.complete``."""
    seen: dict[object, int] = {}
    for place, run in enumerate(study.complete):
        seen.setdefault(repr(study.setting_key(run)), place)
    return tuple(seen.values())


def groups_of(study: Study) -> list[Group]:
    """All groups with at least two runs, the one of all settings first."""
    firsts = first_repeats(study)
    runs = study.complete
    found = [Group("all settings", "all", "", "", firsts)]
    for name in study.factors:
        levels: dict[str, list[int]] = {}
        for place in firsts:
            levels.setdefault(repr(runs[place].factors.get(name)), []).append(place)
        for members in levels.values():
            if len(members) < len(firsts):
                shown = str(runs[members[0]].factors.get(name))
                found.append(Group(f"{name} {shown}", "factor", name, shown, tuple(members)))
    repeats: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        repeats.setdefault(repr(study.setting_key(run)), []).append(place)
    for members in repeats.values():
        label = study.label(runs[members[0]])
        found.append(Group(f"repeats of {label}", "repeats", "", label, tuple(members)))
    return [group for group in found if len(group.runs) > 1]
