"""A scale on one or two GPUs at once, many runs a GPU, for machines without Hydra.

    python -m experiments.yuan2025.h200 items FOLDER                  here: prompts to carry along
    python -m experiments.yuan2025.h200 MODEL ITEMS OUT [SECONDS [TOGETHER [TOGETHER_TWO]]]   there
        [done=CELLS.json] [gpus=1]
    python -m experiments.yuan2025.h200 join OUT NEW...               here again: further runs
    python -m experiments.yuan2025.h200 adopt OUT                     their tasks and marks

A first word scale=FILE takes another scale than scales/h200.yaml. What else a GPU does moves
tokens/s, so those of such a study mean nothing, and should move no bit: the repeats say. Cells
that did not start in time are recorded as not run. ``done``: the cells.json of an earlier machine,
whose finished cells are not run again. ``gpus``: cells on so many GPUs alone are run.
$PYTHON_VLLM is the engine's interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.together import Outcome, run_all, split_words
from experiments.yuan2025.carried import adopt, setting_there, write_items
from experiments.yuan2025.join import join
from experiments.yuan2025.matrix import Scale, load_scale
from nondet.runs import write_json
from nondet.settings import Setting, SettingError, one_line

SCALE = "h200"
# NVLink multicast stays off; two processes share no symmetric memory; logs hold warnings only.
SWITCHES = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "2",
}


def drive(
    scale: Scale,
    model: str,
    items: Path,
    out: Path,
    seconds: float,
    share: dict[int, int],
    before: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Run all cells in their order and write cells.json: what became of each, and why.

    share: how many runs share a GPU, and how many a pair of them; cells on another number of GPUs
    are not run. before: what became of cells on an earlier machine; those that finished stay.
    """
    began = time.monotonic()
    settings: dict[str, Setting] = {}
    refused: dict[str, Outcome] = {}
    kept = {name: what for name, what in (before or {}).items() if "reason" not in what}
    for cell in scale.cells:
        if cell.name in kept:
            continue
        try:
            setting = setting_there(cell, model, items)
        except SettingError as error:
            refused[cell.name] = Outcome("refused", one_line(error))
            continue
        if setting.gpus in share:
            settings[cell.name] = setting
        else:
            refused[cell.name] = Outcome("not run", "left for later")
    found = run_all({out: list(settings.values())}, scale.name, share, seconds)[out]
    outcomes = {**refused, **dict(zip(settings, found, strict=True))}
    cells = {
        cell.name: kept[cell.name] if cell.name in kept else said(outcomes[cell.name])
        for cell in scale.cells
    }
    write_json(out / "cells.json", {"scale": scale.name, "cells": cells})
    write_json(out / "study.json", {"name": f"yuan2025 {scale.name}", "seed": 42})
    done = sum("reason" not in what for what in cells.values())
    print(f"{done} of {len(cells)} cells done in {time.monotonic() - began:.0f} s", flush=True)
    for cell in scale.cells:
        print(f"  {cells[cell.name].get('reason', 'done')[:120]}  {cell.name}")


def said(outcome: Outcome) -> dict[str, Any]:
    """One cell of cells.json."""
    what: dict[str, Any] = {}
    if outcome.run_id:
        what = {"run": outcome.run_id, "seconds": outcome.seconds}
    if outcome.reason:
        early = "not run: " if outcome.status == "not run" else ""
        what["reason"] = f"{early}{outcome.reason}"[:300]
    return what


def main(words: Sequence[str]) -> None:
    """The command line of the module's docstring."""
    name = SCALE
    if words[0].startswith("scale="):
        name, words = words[0].removeprefix("scale="), words[1:]
    scale = load_scale(name)
    if words[0] == "items":
        write_items(Path(words[1]), scale)
    elif words[0] == "join":
        print("\n".join(join(Path(words[1]), scale, [Path(word) for word in words[2:]])))
    elif words[0] == "adopt":
        adopt(Path(words[1]), scale)
    else:
        given, (model, items, out, *rest) = split_words(words, ["done", "gpus"])
        seconds, together, two = (*rest, *("480", "7", "3")[len(rest) :])
        share = {1: int(together), 2: int(two)}
        if "gpus" in given:
            share = {int(given["gpus"]): share[int(given["gpus"])]}
        before = json.loads(Path(given["done"]).read_text())["cells"] if "done" in given else {}
        os.environ.update(SWITCHES)
        drive(scale, model, Path(items), Path(out), float(seconds), share, before)


if __name__ == "__main__":
    main(sys.argv[1:])
