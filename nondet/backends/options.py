"""Options of a backend: their kinds, defaults and checks in one table a backend.

An option left at null takes the default of this table, so that the flat factors of a run name
only what somebody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nondet.settings import Scalar, Setting, SettingError


@dataclass(frozen=True)
class Option:
    """One option. ``kind`` is bool, int, float or str; ``low`` the least number allowed;
    ``choices`` all values allowed, if they can be listed."""

    kind: type
    default: Scalar = None
    low: float = 0
    choices: tuple[str, ...] = ()
    help: str = ""

    @property
    def valid(self) -> str:
        """What may stand there, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return "text"
        number = "a whole number" if self.kind is int else "a number"
        return f"{number} of at least {self.low:g}"

    def accepts(self, value: object) -> bool:
        """Whether a value (not null) may stand there."""
        if self.choices:
            return value in self.choices
        if self.kind in (int, float):
            whole = (int,) if self.kind is int else (int, float)
            return isinstance(value, whole) and not isinstance(value, bool) and value >= self.low
        return isinstance(value, self.kind)


def read_options(setting: Setting, table: Mapping[str, Option]) -> dict[str, Any]:
    """Every option of ``table`` with its value. Raises SettingError for a wrong or unknown one."""
    name, given = setting.backend.name, setting.backend.options
    for key, value in given.items():
        if key not in table:
            known = ", ".join(sorted(table))
            valid = f"left out: backend={name} has no such option (it has {known})"
            raise SettingError(f"backend.{key}", value, valid)
        if value is not None and not table[key].accepts(value):
            raise SettingError(f"backend.{key}", value, table[key].valid)
    asked = {key: given.get(key) for key in table}
    return {key: table[key].default if asked[key] is None else asked[key] for key in table}


def refuse(setting: Setting, **fixed: tuple[object, str]) -> None:
    """Raise SettingError for factors that an engine does not have.

    ``fixed`` maps a factor to the one value it may have and the reason, as in
    ``attention=("sdpa", "the factor here is backend.attention_backend")``.
    """
    for key, (only, reason) in fixed.items():
        value = getattr(setting, key)
        if value != only:
            word = str(only).lower() if isinstance(only, bool) else only
            raise SettingError(key, value, f"{word} with backend={setting.backend.name}: {reason}")
