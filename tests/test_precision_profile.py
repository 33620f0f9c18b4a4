"""The profile of a decode step: calls are those of one step, whatever the wave's length."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.precision.profile_step import step_of
from experiments.precision.speed import opened


def test_a_step_holds_each_product_once(tiny: Path) -> None:
    variant = {"dtype": "fp32", "product": "auto", "kernels": "default", "graph": False}
    with opened(str(tiny), variant) as backend:
        config = backend.model.config
        linears = [m for m in backend.model.modules() if isinstance(m, torch.nn.Linear)]
        step = step_of(backend, 2).set_index("kernel")
    assert len(linears) >= 7 * config.num_hidden_layers
    # A step more or less in the difference of the two waves would move this.
    assert step.loc["aten::linear", "calls"] == pytest.approx(len(linears))
    assert step["share"].sum() == pytest.approx(1.0)
