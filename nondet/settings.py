"""A setting: one full assignment of the factors, checked before anything starts.

Pure Python without torch or Hydra, so that a worker in any interpreter can read it back from JSON.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Scalar = str | int | float | bool | None

DTYPES = ("bf16", "fp16", "fp32", "layercast")
KERNELS = ("default", "invariant", "tp_invariant")
BATCHINGS = ("wave", "varied", "continuous")
PADDINGS = ("none", "wave", "fixed")
DEVICES = ("auto", "cpu", "cuda")
# Options of engines that say how long to wait and how often to try; they move no token.
PATIENCE = ("start_timeout_s", "wave_timeout_s", "stop_timeout_s", "request_timeout_s",
            "retries", "backoff_s", "api_key_env")  # fmt: skip


class SettingError(ValueError):
    """A mistake in a config: one line naming the key, the value and what would be valid."""

    def __init__(self, key: str, value: object, valid: str) -> None:
        self.key, self.value, self.valid = key, value, valid
        super().__init__(f"{key}={value}: must be {valid}")


def one_line(error: BaseException) -> str:
    """A message without its line breaks."""
    return " ".join(str(error).split())


@dataclass(frozen=True)
class BackendSetting:
    """Which engine, in which interpreter, with which factors of its own."""

    name: str = "hf"
    python: str | None = None
    options: Mapping[str, Scalar] = field(default_factory=dict)

    def moving(self) -> dict[str, Scalar]:
        """The options that may move a token: all but those of ``PATIENCE``."""
        return {name: value for name, value in self.options.items() if name not in PATIENCE}


@dataclass(frozen=True)
class ModelSetting:
    """Which model: ``name`` as in configs/model; ``path`` a folder, a GGUF file or a Hub id."""

    name: str = "smollm2"
    path: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class TaskSetting:
    """Which items: ``name`` as in configs/task; ``limit`` keeps the first items only."""

    name: str = "recall"
    path: str | None = None
    limit: int | None = None
    options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """All factors of one run. ``samples`` responses an item when temperature is above 0."""

    backend: BackendSetting = field(default_factory=BackendSetting)
    model: ModelSetting = field(default_factory=ModelSetting)
    task: TaskSetting = field(default_factory=TaskSetting)
    batch_size: int = 4
    batching: str = "wave"
    padding: str = "wave"
    dtype: str = "bf16"
    kernels: str = "default"
    attention: str = "sdpa"
    device: str = "auto"
    gpus: int = 1
    threads: int | None = None
    tf32: bool = False
    reduced_precision: bool = True
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 42
    samples: int = 1
    top_k: int = 5
    repeat: int = 0
    timeout_s: float | None = None

    def check(self) -> Setting:
        """Return self, or raise SettingError for the first factor that is out of range."""
        for key, low in (("batch_size", 1), ("gpus", 1), ("max_new_tokens", 1), ("samples", 1)):
            _whole(key, getattr(self, key), low)
        for key, low in (("repeat", 0), ("top_k", 1), ("seed", 0)):
            _whole(key, getattr(self, key), low)
        for key, low in (("threads", 1), ("task.limit", 1)):
            value = self.task.limit if key == "task.limit" else self.threads
            if value is not None:
                _whole(key, value, low)
        for key, valid in (
            ("batching", BATCHINGS),
            ("padding", PADDINGS),
            ("dtype", DTYPES),
            ("kernels", KERNELS),
            ("device", DEVICES),
        ):
            if getattr(self, key) not in valid:
                raise SettingError(key, getattr(self, key), "one of " + ", ".join(valid))
        for key in ("tf32", "reduced_precision"):
            if not isinstance(getattr(self, key), bool):
                raise SettingError(key, getattr(self, key), "true or false")
        _real("temperature", self.temperature, 0.0, math.inf)
        _real("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise SettingError("top_p", self.top_p, "above 0 and at most 1")
        if self.timeout_s is not None:
            _real("timeout_s", self.timeout_s, 0.0, threading.TIMEOUT_MAX)
        if self.samples > 1 and self.temperature == 0:
            raise SettingError("samples", self.samples, "1 when temperature is 0")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dict, ready for JSON."""
        return dataclasses.asdict(self)

    def factors(self) -> dict[str, Scalar]:
        """Flat factor names and values, as in tables: backend options by their own name.

        The model appears as its name, with path and revision where they are given; the
        interpreter, the repeat and time limits are not factors.
        """
        flat: dict[str, Scalar] = {"backend": self.backend.name}
        model = (self.model.name, self.model.path, self.model.revision)
        flat["model"] = ":".join(part for part in model if part)
        flat["task"] = self.task.name
        for item in dataclasses.fields(self):
            if item.name not in ("backend", "model", "task", "repeat", "timeout_s"):
                flat[item.name] = getattr(self, item.name)
        return {**flat, **self.backend.moving()}


T = TypeVar("T")


def setting_from(config: Mapping[str, Any]) -> Setting:
    """A checked Setting from a nested mapping, as Hydra composes it or ``to_dict`` wrote it.

    Keys of the groups backend and task beyond their fixed fields are their options.
    Raises SettingError for unknown keys and for values out of range.
    """
    values = dict(config)
    backend = _group(BackendSetting, "backend", values.pop("backend", {}))
    model = _group(ModelSetting, "model", values.pop("model", {}))
    task = _group(TaskSetting, "task", values.pop("task", {}))
    known = {item.name for item in dataclasses.fields(Setting)}
    for key in values:
        if key not in known:
            raise SettingError(key, values[key], "left out: there is no such factor")
    made = Setting(backend=backend, model=model, task=task, **values).check()
    # 0 and 0.0 are one setting, with one hash.
    reals: dict[str, Any] = {
        key: float(values[key])
        for key in ("temperature", "top_p", "timeout_s")
        if type(values.get(key)) is int
    }
    return dataclasses.replace(made, **reals)


def _group(cls: type[T], key: str, value: Any) -> T:
    if not isinstance(value, Mapping):
        raise SettingError(key, value, f"a config group, as in configs/{key}")
    fixed = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    known = {name: part for name, part in value.items() if name in fixed}
    extra = {name: part for name, part in value.items() if name not in fixed}
    if extra and "options" not in fixed:
        name = next(iter(extra))
        raise SettingError(f"{key}.{name}", extra[name], "left out: there is no such key")
    for name in known.keys() & {"name", "path", "revision", "python"}:
        _text(f"{key}.{name}", known[name], name == "name")
    if "options" in fixed:
        inner = known.get("options", {})
        if not isinstance(inner, Mapping):
            raise SettingError(f"{key}.options", inner, "a mapping of names to values")
        known["options"] = {**inner, **extra}
        for name, part in known["options"].items():
            if not isinstance(part, str | int | float | bool | None):
                raise SettingError(f"{key}.{name}", part, "a text, a number, true, false or null")
    return cls(**known)


def _text(key: str, value: object, needed: bool) -> None:
    if not isinstance(value, str) and (needed or value is not None):
        raise SettingError(key, value, "a text: a number stands in quotes, as in '\"7\"'")


def _whole(key: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise SettingError(key, value, f"a whole number of at least {low}")


def _real(key: str, value: object, low: float, high: float) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if not ok or not low <= float(value) <= high:  # type: ignore[arg-type]
        upper = "" if math.isinf(high) else f" and at most {high:g}"
        raise SettingError(key, value, f"a number of at least {low:g}{upper}")
