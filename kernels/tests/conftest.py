"""Without a GPU the kernels run in Triton's interpreter; tests marked ``gpu`` say why they skip."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "bench")]
if not torch.cuda.is_available():
    # Read when a kernel file is imported, so before any of them is.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cuda = torch.cuda.is_available()
    for item in items:
        if HERE not in item.path.parents:
            continue
        if item.get_closest_marker("gpu") and not cuda:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
        elif not item.get_closest_marker("gpu") and cuda:
            item.add_marker(pytest.mark.skip(reason="interpreter test: run where there is no GPU"))
