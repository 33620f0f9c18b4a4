"""A synthetic study of the mini scale, and what a test asks of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.yuan2025.matrix import Cell, Scale, load_scale
from experiments.yuan2025.results import save_results
from tests.factory import forked, make_rows, write_run

ITEMS = 16
# Share of items that leave the first setting's answer, and noise of log-probabilities.
LEAVE = {"bf16": 0.9, "fp16": 0.5, "fp32": 0.0, "layercast": 0.0}
NOISE = {"bf16": 1e-2, "fp16": 1e-3, "fp32": 1e-6, "layercast": 1e-6}


def make(folder: Path, leave: Mapping[str, float] = LEAVE, missing: str = "sampling") -> Scale:
    """Write runs and cells.json for all of scale mini but the cells of the arm ``missing``."""
    scale = load_scale("mini")
    rng = np.random.default_rng(3)
    base = {task: make_rows(rng, ITEMS, 20, 32) for task in scale.tasks}
    said: dict[str, dict[str, Any]] = {}
    for cell in scale.cells:
        if cell.arm == missing:
            said[cell.name] = {"reason": "left out by the test"}
            continue
        dtype = str(cell.asked("dtype", "bf16"))
        # The first batch size answers as the base; a repeat of it does, too.
        away = cell.values["batch_size"] != 4
        rows = []
        for row in base[cell.task]:
            ends = len(row.tokens)
            at = int(rng.integers(1, ends)) if away and rng.random() < leave[dtype] else ends
            rows.append(forked(rng, row, at, NOISE[dtype] if away else 0.0))
        said[cell.name] = {"run": write_run(folder / "runs", factors(cell), rows, **facts(cell))}
    save_results(scale, folder, said)
    return scale


def factors(cell: Cell) -> dict[str, Any]:
    """Factors of a cell's run."""
    return {**cell.values, "task": cell.task, "model": cell.model}


def facts(cell: Cell) -> dict[str, Any]:
    """What else of run.json tells the cell's run from others."""
    return {
        "repeat": int(cell.asked("repeat", 0)),
        "task_fingerprint": f"task {cell.task}",
        "prompts_fingerprint": f"prompts {cell.task}",
        "environment": {"cpu": "a test", "cpus": 2, "versions": {"torch": "2.13.0"}},
    }
