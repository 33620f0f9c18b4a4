"""The whole contract of a backend: one engine that turns prompt tokens into response tokens.

A backend module must be importable where its engine is not installed, because the parent process
checks settings with it: import the engine inside ``start``, never at the top of the module.
Third parties register a class under the entry-point group ``nondet.backends``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nondet.settings import Setting, SettingError

GROUP = "nondet.backends"
FINISH_REASONS = ("stop", "length", "error")


@dataclass(frozen=True)
class Request:
    """One response to be generated.

    ``prompt_tokens`` is what the model reads, chat template applied and without padding;
    ``prompt`` is the same text before the template, for endpoints that apply their own.
    ``seed`` belongs to this item alone: sampling must not depend on neighbours in a batch.
    ``pad_to`` is the least prompt length after padding, for engines that pad (padding: fixed).
    """

    item_id: str
    prompt_tokens: tuple[int, ...]
    prompt: str = ""
    seed: int = 0
    pad_to: int = 0


@dataclass
class Response:
    """What came back for one request; T response tokens, K candidates at each.

    tokens: int32 (T,), the end token kept.
    logprobs: float32 (T,), log-probability of each emitted token; NaN where the engine gave none.
    top_ids, top_logprobs: int32 and float32 (T, K), candidates by falling log-probability, ties
        by rising id. Candidates that the engine did not give are id -1 and NaN.
    finish_reason: "stop" (an end token), "length" (the token limit) or "error".
    text: the response decoded without special tokens.
    """

    item_id: str
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    finish_reason: str
    text: str
    note: str = ""


class Backend(ABC):
    """One engine in one process. Life cycle: ``check`` (parent), then in the worker
    ``environment`` before any import, ``start``, ``observed``, ``generate``..., ``close``."""

    name: ClassVar[str]
    # State carried from one wave to the next (a prefix cache): a killed run starts over.
    stateful: ClassVar[bool] = False
    # The values of the factor kernels that this engine has.
    kernels: ClassVar[tuple[str, ...]] = ("default", "invariant")
    # Seconds from the start of the last wave to its first tokens; None where it is not known.
    first_token_s: float | None = None

    def __init__(self, setting: Setting, model_path: str) -> None:
        """``model_path`` is a local model folder, or a Hub id or endpoint model name."""
        self.setting = setting
        self.model_path = model_path

    @classmethod
    def check(cls, setting: Setting) -> None:
        """Raise SettingError for a setting that this engine cannot run. Imports no engine."""

    @classmethod
    def check_device(cls, setting: Setting, device: str) -> None:
        """Raise SettingError for what cannot run on ``device``, "cpu" or "cuda"."""

    @classmethod
    def packages(cls) -> tuple[str, ...]:
        """Distributions whose versions decide the bits and so belong to a run's identity."""
        return ("torch",)

    @classmethod
    def versions_elsewhere(cls, setting: Setting) -> dict[str, str | None]:
        """Versions that decide the bits in another interpreter than the worker's, as a server's.

        Raises SettingError where that interpreter cannot tell.
        """
        return {}

    @classmethod
    def environment(cls, setting: Setting) -> dict[str, str]:
        """Variables the worker process needs before its first import of the engine."""
        return {}

    @abstractmethod
    def start(self) -> None:
        """Load the engine and the model."""

    @abstractmethod
    def generate(self, wave: Sequence[Request]) -> list[Response]:
        """Answer every request of one wave, in the order asked."""

    def observed(self) -> dict[str, Any]:
        """Settings really in force, read back from the engine after ``start`` (JSON values)."""
        return {}

    def memory_mb(self) -> dict[str, float | None]:
        """``weights_mb`` and ``cache_mb``, 10^6 bytes, where the engine can tell."""
        return {}

    def close(self) -> None:
        """Free what ``start`` took; called once, also after an error."""


def backend_class(name: str) -> type[Backend]:
    """The backend registered as ``name``. Raises SettingError naming the known ones."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise SettingError("backend", name, "one of " + ", ".join(sorted(found)))
    cls = found[name].load()
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise SettingError("backend", name, f"a subclass of Backend, not {cls!r}")
    return cls


def checked_backend(setting: Setting) -> type[Backend]:
    """The backend of a setting that it can run. Raises SettingError."""
    name = setting.backend.name
    found = backend_class(name)
    if setting.kernels not in found.kernels:
        valid = "one of " + ", ".join(found.kernels) + f" with backend={name}"
        raise SettingError("kernels", setting.kernels, valid)
    found.check(setting)
    return found


def known_path(python: str | None) -> Path | None:
    """The interpreter of a backend as an absolute path; None means this one."""
    return None if python is None else Path(python).expanduser().absolute()
