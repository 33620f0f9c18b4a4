"""Markers by name, imported only when asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from nondet.marking.base import Marker
from nondet.settings import SettingError

# name: module and class.
MARKERS = {
    "none": "nondet.marking.nothing:NoMarker",
    "integer": "nondet.marking.numbers:IntegerMarker",
    "math": "nondet.marking.mathematics:MathMarker",
    "choice": "nondet.marking.choice:ChoiceMarker",
    "code": "nondet.marking.programs:CodeMarker",
    "reasoning_gym": "nondet.marking.gym:GymMarker",
}


def with_versions(own: str, *packages: str) -> str:
    """A marker's version with those of the packages that its verdicts depend on."""
    parts = [own]
    for package in packages:
        try:
            parts.append(f"{package}-{version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package}-missing")
    return "/".join(parts)


def get_marker(name: str) -> Marker:
    """The marker of that name. Raises SettingError for an unknown one."""
    if name not in MARKERS:
        raise SettingError("task.marker", name, "one of " + ", ".join(sorted(MARKERS)))
    module, cls = MARKERS[name].split(":")
    marker: Marker = getattr(import_module(module), cls)()
    return marker
