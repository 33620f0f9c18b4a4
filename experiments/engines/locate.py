"""Where does a vLLM start to differ: at how many tokens a step, and in which operation?

    VLLM_BATCH_INVARIANT=1 python experiments/engines/locate.py MODEL_FOLDER OUT.json

One needle of 12 tokens is prefilled alone and again in steps of T tokens, T as asked; its first
token's log-probabilities are compared bit by bit. Then hooks on every module find the first one
with equal inputs and other outputs, and single operations are exchanged (ablation) or called
alone with 1 to 600 rows. Run it once with the mode and once without.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nondet.backends.base import Request
from nondet.backends.vllm import VLLMBackend
from nondet.settings import setting_from

NEEDLE = 12
FILLER = 64
FEW = [13, 64, 128, 200, 250, 254, 255, 256, 257, 258, 300, 400, 512, 1024, 2048]
HIDDEN = (576, 1024, 1536, 2048, 3584, 4096, 8192)


def step(tokens: int, seed: int = 0) -> list[Request]:
    """Requests that make one prefill step of ``tokens`` tokens; the needle comes first."""
    rng = np.random.default_rng(seed)
    needle = tuple(int(t) for t in rng.integers(1000, 40000, NEEDLE))
    wave, left = [Request("needle", needle)], tokens - NEEDLE
    while left > 0:
        length = min(FILLER, left)
        ids = tuple(int(t) for t in rng.integers(1000, 40000, length))
        wave.append(Request(f"filler{len(wave)}", ids))
        left -= length
    return wave


def bits(backend: VLLMBackend, tokens: int) -> bytes:
    """The needle's candidates at its first token, as bytes."""
    response = backend.generate(step(tokens))[0]
    return response.top_ids.tobytes() + response.top_logprobs.tobytes()


def sweep(backend: VLLMBackend, sizes: Iterable[int]) -> dict[str, Any]:
    """At which step sizes the needle differs from itself alone."""
    alone = bits(backend, NEEDLE)
    assert bits(backend, NEEDLE) == alone, "the needle alone does not repeat"
    tried = sorted(set(sizes))
    differs = [size for size in tried if bits(backend, size) != alone]
    first = differs[0] if differs else None
    return {
        "tried": len(tried),
        "largest": tried[-1],
        "differ": len(differs),
        "first": first,
        "equal_above_first": [s for s in tried if first and s > first and s not in differs][:50],
        "differ_at": differs[:50],
    }


Seen = dict[str, tuple[Any, Any]]


def record(backend: VLLMBackend, tokens: int) -> Seen:
    """Inputs and outputs of every leaf module for the needle's rows, in one prefill."""
    seen: Seen = {}
    inputs: dict[str, Any] = {}

    def rows(value: Any) -> Any:
        parts = value if isinstance(value, tuple | list) else (value,)
        return [p[:NEEDLE].detach().clone() for p in parts if hasattr(p, "shape") and p.dim() > 0]

    def hook(model: Any) -> list[Any]:
        handles = []
        for name, module in model.named_modules():
            if any(True for _ in module.children()) and "attn.attn" not in name:
                continue
            label = f"{name} ({type(module).__name__})"

            def before(_m: Any, args: Any, label: str = label) -> None:
                inputs[label] = rows(args)

            def after(_m: Any, _args: Any, out: Any, label: str = label) -> None:
                seen.setdefault(label, (inputs[label], rows(out)))

            handles += [module.register_forward_pre_hook(before)]
            handles += [module.register_forward_hook(after)]
        return handles

    handles = backend.llm.apply_model(hook)[0]
    try:
        bits(backend, tokens)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def first_module(backend: VLLMBackend, tokens: int) -> dict[str, Any]:
    """The first modules whose inputs are equal and whose outputs are not."""
    import torch

    alone, among = record(backend, NEEDLE), record(backend, tokens)

    def same(a: list[Any], b: list[Any]) -> bool:
        return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    culprits, touched = [], 0
    for label, (given, made) in alone.items():
        if label not in among:
            continue
        other_given, other_made = among[label]
        touched += not same(made, other_made)
        if same(given, other_given) and not same(made, other_made):
            gap = max(
                float((a.float() - b.float()).abs().max())
                for a, b in zip(made, other_made, strict=True)
            )
            culprits.append({"module": label, "largest_gap": gap})
    return {"step": tokens, "modules": len(alone), "differ": touched, "culprits": culprits[:8]}


@contextmanager
def exchanged(name: str) -> Iterator[None]:
    """Exchange one operation of the invariant mode: "norm" or "linear"."""
    import torch
    from vllm.model_executor.layers import layernorm, linear

    if name == "norm":
        inner = layernorm.rms_norm_batch_invariant

        def norm(x: Any, weight: Any, eps: float = 1e-6, residual: Any = None) -> Any:
            if residual is None:
                return inner(x, weight, eps)
            residual.add_(x)
            return inner(residual, weight, eps), residual

        module, attribute, new = layernorm, "rms_norm_batch_invariant", norm
    else:
        module, attribute, new = linear, "linear_batch_invariant", torch.nn.functional.linear
    old = getattr(module, attribute)
    setattr(module, attribute, new)
    try:
        yield
    finally:
        setattr(module, attribute, old)


def row_classes(call: Callable[[int, int], Any], largest: int = 600) -> dict[str, Any]:
    """At which row counts M some row has other bits than computed alone.

    call: rows from start to stop of one fixed input. One row would not do: a last bit of a sum
    is rounded away in most rows.
    """
    import torch

    alone = torch.cat([call(row, row + 1) for row in range(largest)])
    other, rows = [], 0
    for m in range(2, largest + 1):
        wrong = (call(0, m) != alone[:m]).any(dim=-1)
        if wrong.any():
            other.append(m)
            rows = max(rows, int(wrong.sum()))
    first = other[0] if other else None
    equal_above = [m for m in range(first or largest, largest) if m not in other]
    return {
        "first": first,
        "count": len(other),
        "of": largest - 1,
        "equal_above_first": len(equal_above),
        "most_rows": rows,
    }


def operations(weights: dict[str, Any]) -> dict[str, Any]:
    """Single operations alone, on random bf16 rows: the norms and the model's own matmuls."""
    import torch
    from vllm import _custom_ops
    from vllm.model_executor.layers.linear import linear_batch_invariant

    found: dict[str, Any] = {}
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)

    for hidden in HIDDEN:
        x, residual, weight = draw(600, hidden), draw(600, hidden), draw(hidden)

        def fused(a: int, b: int, x: Any = x, r: Any = residual, w: Any = weight) -> Any:
            out = x[a:b].clone()
            _custom_ops.fused_add_rms_norm(out, r[a:b].clone(), w, 1e-5)
            return out

        def plain(a: int, b: int, x: Any = x, w: Any = weight) -> Any:
            out = torch.empty_like(x[a:b])
            _custom_ops.rms_norm(out, x[a:b].clone(), w, 1e-5)
            return out

        found[f"fused_add_rms_norm, {hidden} wide"] = row_classes(fused)
        found[f"rms_norm, {hidden} wide"] = row_classes(plain)
    for name, weight in weights.items():
        x = draw(600, weight.shape[1])
        found[f"linear_batch_invariant, {name}"] = row_classes(
            lambda a, b, x=x, w=weight: linear_batch_invariant(x[a:b].clone(), w)
        )
        found[f"cuBLAS linear, {name}"] = row_classes(
            lambda a, b, x=x, w=weight: torch.nn.functional.linear(x[a:b].clone(), w)
        )
    return found


def layer_weights(model: Any) -> dict[str, Any]:
    """The matrices of the first layer, by their place."""
    return {
        f"{name} {tuple(weight.shape)}": weight.detach()
        for name, weight in model.named_parameters()
        if "layers.0." in name and weight.dim() == 2
    }


def main(model: str, out: Path, attention: str | None) -> None:
    """Run everything and write one JSON file, again after each part.

    attention: another attention backend, swept alone; or "operations" for these alone.
    """
    mode = os.environ.get("VLLM_BATCH_INVARIANT") == "1"
    options = {"eager": True, "cache_gib": 4, "chunk_tokens": 8192, "max_length": 2048}
    named = None if attention == "operations" else attention
    options |= {"memory_fraction": 0.06, "attention_backend": named}
    setting = setting_from(
        {
            "backend": {"name": "vllm", **options},
            "model": {"name": "local", "path": model},
            "batch_size": 128,
            "max_new_tokens": 1,
            "kernels": "invariant" if mode else "default",
        }
    )
    for key, value in VLLMBackend.environment(setting).items():
        os.environ[key] = value
    backend = VLLMBackend(setting, model)
    backend.start()
    result: dict[str, Any] = {"observed": backend.observed()}

    def keep(key: str, value: Any) -> None:
        result[key] = value
        out.write_text(json.dumps(result, indent=1, default=str) + "\n")
        print(key, json.dumps(value)[:600], flush=True)

    if attention == "operations":
        keep("operations", operations(backend.llm.apply_model(layer_weights)[0]))
        backend.close()
        return
    keep("few", sweep(backend, FEW))
    if attention is not None:
        backend.close()
        return
    keep("sweep", sweep(backend, [*range(13, 600), *range(640, 4097, 128)]))
    for size in (255, 256, 300, 1024):
        keep(f"first_module_{size}", first_module(backend, size))
    if mode:
        for name in ("norm", "linear"):
            with exchanged(name):
                keep(f"without_{name}", sweep(backend, [*FEW, *range(240, 600, 4)]))
        with exchanged("norm"), exchanged("linear"):
            keep("without_norm_and_linear", sweep(backend, FEW))
    keep("operations", operations(backend.llm.apply_model(layer_weights)[0]))
    backend.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
