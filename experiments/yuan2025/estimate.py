"""Tokens, hours and disk of a scale before anything starts, from the assumptions in speeds.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.yuan2025.matrix import Cell, Scale
from nondet.settings import Setting, SettingError


@dataclass(frozen=True)
class Cost:
    """One run: tokens it generates, seconds it takes, GPUs it holds, bytes it leaves."""

    tokens: float
    seconds: float
    gpus: int
    size: float


@cache
def assumptions() -> dict[str, Any]:
    """speeds.yaml."""
    given: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "speeds.yaml").read_text())
    return given


def cost(cell: Cell, scale: Scale) -> Cost:
    """What one run is expected to cost; answers of unknown length are taken to reach the limit."""
    known, setting = assumptions(), cell.setting()
    model, items = scale.models[cell.model], int(scale.tasks[cell.task]["items"])
    limit = setting.max_new_tokens
    mean = min(known["answer_tokens"][model["kind"]].get(cell.task, limit), limit)
    tokens = float(items * setting.samples * mean)
    speed = _measured(cell, setting)
    if speed:
        seconds = tokens / speed + known["measured_start_s"]
    else:
        longest = min(mean * known["longest_over_mean"], limit)
        waves = math.ceil(items * setting.samples / setting.batch_size)
        step = step_seconds(cell, setting, model)
        seconds = waves * longest * step + known["start_s"]
    a_token = known["bytes_per_token"]
    size = tokens * (a_token["fixed"] + a_token["each_candidate"] * setting.top_k)
    return Cost(tokens, seconds, setting.gpus, size + known["bytes_per_run"])


def step_seconds(cell: Cell, setting: Setting, model: Mapping[str, Any]) -> float:
    """One decoding step: reading the weights once, and launching the kernels."""
    known = assumptions()
    weights = float(model["parameters"]) * known["weight_bytes"][setting.dtype]
    bandwidth = known["gpus"][cell.hardware]["bandwidth_gb_s"] * 1e9 * known["efficiency"]
    overhead = known["overhead_ms"].get(setting.backend.name, known["overhead_ms"]["hf"]) / 1000
    return float(weights / (setting.gpus * bandwidth) + overhead)


def _measured(cell: Cell, setting: Setting) -> float | None:
    """Measured tokens/s, from the first row that fits."""
    here: dict[str, Any] = {"model": cell.model, "hardware": cell.hardware, "dtype": setting.dtype}
    here |= {"gpus": setting.gpus, "batch_size": setting.batch_size}
    for row in assumptions()["measured"]:
        if all(row[key] == value for key, value in here.items() if key in row):
            return float(row["tokens_per_s"])
    return None


def table(scale: Scale) -> pd.DataFrame:
    """One row an arm and GPU type, and their sum."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in scale.cells:
        try:
            one = cost(cell, scale)
        except SettingError:
            one = Cost(0, 0, 0, 0)  # refused: ``missing`` names it
        row = rows.setdefault(
            (cell.arm, cell.hardware),
            {"arm": cell.arm, "hardware": cell.hardware, "runs": 0}
            | dict.fromkeys(("million tokens", "hours", "GPU hours", "disk (GB)"), 0.0),
        )
        row["runs"] += 1
        row["million tokens"] += one.tokens / 1e6
        row["hours"] += one.seconds / 3600
        row["GPU hours"] += one.seconds * one.gpus / 3600
        row["disk (GB)"] += one.size / 1e9
    found = pd.DataFrame(list(rows.values()))
    total = found.drop(columns=["arm", "hardware"]).sum()
    found.loc[len(found)] = {"arm": "all", "hardware": "", **total.to_dict()}
    found["runs"] = found["runs"].astype(int)
    return found.round({"million tokens": 3, "hours": 2, "GPU hours": 1, "disk (GB)": 3})


def words() -> str:
    """The assumptions in one paragraph."""
    known = assumptions()
    gpus = "; ".join(
        f"{name} {facts['bandwidth_gb_s']} GB/s ({facts['source']})"
        for name, facts in known["gpus"].items()
    )
    return (
        f"Assumed: a step reads all weights at {known['efficiency']:.0%} of the memory bandwidth "
        f"({gpus}) and takes {known['overhead_ms']['vllm']} ms more with vLLM; a wave lasts "
        f"{known['longest_over_mean']:g} mean answers; tokens of an answer by task; "
        f"{known['start_s']} s to start. Hours of a GPU-less machine are wall hours. All of it is "
        "in experiments/yuan2025/speeds.yaml, to be edited; measured rows win."
    )
