"""Shared fixtures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tiny_llama import make_tiny_llama

# The same examples every time, on a machine of any speed.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
# Tests are small: one thread each keeps them quick and off each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL task of eight prompts of different lengths."""
    path = tmp_path_factory.mktemp("task") / "prompts.jsonl"
    words = ["a", "bc", "def", "ghij", "klmno", "pqrstu", "vwxyz01", "23456789"]
    rows = [{"id": f"item-{n}", "prompt": word, "answer": str(n)} for n, word in enumerate(words)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep converted prompts and hashes out of the user's cache."""
    if "NONDET_CACHE" not in os.environ:
        monkeypatch.setenv("NONDET_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
