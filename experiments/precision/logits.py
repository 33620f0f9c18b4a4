"""Error of a model's logits against float64, for every number format.

    python -m experiments.precision.logits MODEL_FOLDER OUT.csv [PROMPTS]

``rms``: root mean square error over all logits of all prompts (the built-in task); ``of_fp32``:
that of torch's FP32 divided into it; ``median`` over prompts of the same ratio. The float64 model
has the 16-bit weights' values and FP32 rotary tables, as all the others have.
"""

from __future__ import annotations

import csv
import gc
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nondet.environment import cpu_name, gpu_names, versions
from nondet.invariant import invariant_kernels
from nondet.precision.load import load_model
from nondet.precision.switches import set_switches
from nondet.settings import setting_from
from nondet.tasks import load_task

VARIANTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fp32", "default", {}),
    ("fp32", "invariant", {}),
    ("layercast", "default", {"product": "fused"}),
    ("layercast", "default", {"product": "plain"}),
    ("layercast", "invariant", {}),
    ("bf16", "default", {}),
    ("fp16", "default", {}),
    ("bf16", "default", {"fp32": "lm_head"}),
    ("bf16", "default", {"fp32": "norms"}),
    ("bf16", "default", {"fp32": "residual"}),
)


def prompts(model: str, count: int) -> list[torch.Tensor]:
    """Token ids of the first prompts of the built-in task."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    task = load_task(setting_from({"task": {"name": "recall", "limit": count}}).task)
    return [torch.tensor([tokenizer(item.prompt)["input_ids"]]) for item in task.items]


def logits(model: Any, ids: list[torch.Tensor]) -> list[torch.Tensor]:
    """Logits (T, V) of each prompt alone, float64 on the host."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        return [model(x.to(device), use_cache=False).logits[0].double().cpu() for x in ids]


def main(words: list[str]) -> None:
    """Measure every format; append to the CSV as they come."""
    import transformers

    path, out, count = words[0], Path(words[1]), int(words[2]) if len(words) > 2 else 16
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    set_switches(tf32=False, reduced_precision=True, threads=None)
    ids = prompts(path, count)
    # Weights as bf16 has them, then wide: what every format here computes with.
    load = transformers.AutoModelForCausalLM.from_pretrained
    exact = load(path, dtype=torch.bfloat16, attn_implementation="eager").double().to(device)
    truth = logits(exact.eval(), ids)
    del exact
    where = ", ".join(gpu_names()) or f"{cpu_name()}, {os.cpu_count()} cores"
    found = versions(("torch", "triton", "transformers"))
    shared = {"prompts": count, "model": Path(path).name, "hardware": where,
              "versions": json.dumps({"python": platform.python_version(), **found})}  # fmt: skip
    base: list[float] = []
    rows = []
    for dtype, kernels, options in VARIANTS:
        row: dict[str, Any] = {"dtype": dtype, "kernels": kernels, "options": json.dumps(options)}
        try:
            setting = setting_from(
                {"dtype": dtype, "kernels": kernels, "backend": {"name": "hf", **options}}
            )
            model, precision = load_model(path, setting, device)
            if kernels == "invariant":
                with invariant_kernels(model):
                    got = logits(model, ids)
            else:
                got = logits(model, ids)
            precision.undo()
            own = [float((g - t).square().mean()) for g, t in zip(got, truth, strict=True)]
            base = base or own
            row["rms"] = float(f"{np.mean(own) ** 0.5:.5g}")
            row["of_fp32"] = round(float((np.mean(own) / np.mean(base)) ** 0.5), 4)
            row["median"] = round(float(np.median(np.sqrt(np.divide(own, base)))), 4)
        except Exception as error:
            row["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        model = precision = None
        gc.collect()
        rows.append(row)
        print(row, flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        columns = ["dtype", "kernels", "options", "rms", "of_fp32", "median", "reason", *shared]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({**row, **shared} for row in rows)


if __name__ == "__main__":
    main(sys.argv[1:])
