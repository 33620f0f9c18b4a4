"""experiments/engines/switches.py with an engine that only notes what it was asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.engines import switches
from nondet.backends.vllm import VLLMBackend
from nondet.settings import Setting


class Noted(VLLMBackend):
    """A vLLM that starts nothing."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def generate(self, wave: Any) -> list[Any]:
        return []

    def observed(self) -> dict[str, Any]:
        return {"asked": {name: self.options[name] for name in ("memory_fraction", "cache_gib")}}

    @classmethod
    def environment(cls, setting: Setting) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (None, {"memory_fraction": 0.05, "cache_gib": 4}),
        ('{"memory_fraction": 0.5}', {"memory_fraction": 0.5, "cache_gib": 4}),
    ],
)
def test_the_engine_leaves_memory_for_others_unless_told(
    options: str | None,
    asked: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(switches, "VLLMBackend", Noted)
    if options:
        monkeypatch.setenv("OPTIONS", options)
    else:
        monkeypatch.delenv("OPTIONS", raising=False)
    switches.main(["folder", "1", "fp32"])
    assert json.loads(capsys.readouterr().out)["asked"] == asked
