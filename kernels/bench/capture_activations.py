"""What flows through a real model, for the property cases: inputs of its linears and norms.

    python kernels/bench/capture_activations.py MODEL_FOLDER OUT.pt

Every eighth layer's inputs for one prompt, a million values a kind at most, as one flat tensor.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = (
    "def quicksort(values):\n    if len(values) < 2:\n        return values\n"
    "The river Elbe rises in the Krkonose mountains and reaches the sea at Cuxhaven. "
) * 4


def main() -> None:
    folder, out = sys.argv[1:3]
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(kind).eval()
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt").input_ids.to(kind)
    found: list[torch.Tensor] = []

    def keep(module: Any, inputs: Any) -> None:
        found.append(inputs[0].detach().flatten()[: 1 << 20].cpu())

    for name, module in model.named_modules():
        layer = next((int(part) for part in name.split(".") if part.isdigit()), 0)
        leaf = hasattr(module, "weight") and not isinstance(module, torch.nn.Embedding)
        if layer % 8 == 0 and leaf:
            module.register_forward_pre_hook(keep)
    with torch.inference_mode():
        model(ids)
    torch.save(torch.cat(found), out)
    print(sum(map(len, found)), "values from", len(found), "inputs")


if __name__ == "__main__":
    main()
