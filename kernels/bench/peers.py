"""vLLM's own batch-invariant kernels, to be timed beside ours where vLLM is importable.

They have lived in two modules; the names below are the same in both. What a version lacks is left
out, and without vLLM nothing is found.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import timing
import torch

HOMES = ("vllm.model_executor.determinism.batch_invariant",
         "vllm.model_executor.layers.batch_invariant")  # fmt: skip


@functools.cache
def module() -> ModuleType | None:
    """The module of the installed vLLM, its tuned tiles loaded as an engine would; or None."""
    for home in HOMES:
        try:
            found = importlib.import_module(home)
        except Exception as error:
            missing = getattr(error, "name", None)
            # Without vLLM, and in the home that a version does not have, there is nothing to say.
            if not (missing and home.startswith(missing)):
                print(f"vLLM's {home} fails:", type(error).__name__, str(error)[:200], flush=True)
            continue
        load = getattr(found, "resolve_tuned_matmul_configs", None)
        if load is not None:
            load()
        return found
    return None


def version() -> str:
    """Version of vLLM where its kernels are found, else nothing."""
    return "" if module() is None else str(importlib.import_module("vllm").__version__)


def function(*names: str) -> Callable[..., Any] | None:
    """The first of ``names`` that the installed version has."""
    home = module()
    found = (getattr(home, name, None) for name in names)
    return None if home is None else next((f for f in found if f is not None), None)


def matmul() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """(M, K) by (K, N)."""
    return function("matmul_persistent")


def rows(name: str, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """An operation of ``bench_rows`` on (M, D); None where vLLM has no kernel of its own for it."""
    norm = function("rms_norm_batch_invariant", "rms_norm")
    log, mean = function("log_softmax"), function("mean_dim")
    soft = function("softmax_batch_invariant")
    table: dict[str, tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = {
        "rms_norm": (norm, lambda x: norm(x, weight, 1e-6)),
        "log_softmax": (log, lambda x: log(x, -1)),
        "softmax": (soft, lambda x: soft(x, -1)),
        "mean": (mean, lambda x: mean(x, -1)),
        "mean_outer": (mean, lambda x: mean(x, 0)),
    }
    found, call = table.get(name, (None, torch.clone))
    return None if found is None else call


@functools.cache
def flash() -> tuple[Callable[..., Any], int] | None:
    """vLLM's FlashAttention and the version its mode runs here: 3 on Hopper, else 2; or None.

    Left to itself the function takes version 2, which the mode does not use on Hopper.
    """
    try:
        home = importlib.import_module("vllm.vllm_flash_attn")
        version = next((n for n in (3, 2) if home.is_fa_version_supported(n)), None)
        return None if version is None else (home.flash_attn_varlen_func, version)
    except (ImportError, AttributeError):
        return None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any] | None:
    """Causal attention of (B, H, L, D), ready to start: FlashAttention with the mode's one split.

    None where vLLM brings no FlashAttention. Layout and offsets are made before it is timed.
    """
    found = flash()
    if found is None:
        return None
    flat = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)]
    starts = [torch.arange(len(t) + 1, device=t.device, dtype=torch.int32) * t.shape[2]
              for t in (q, k)]  # fmt: skip
    return functools.partial(found[0], *flat, max_seqlen_q=q.shape[2], cu_seqlens_q=starts[0],
                             max_seqlen_k=k.shape[2], cu_seqlens_k=starts[1], causal=True,
                             num_splits=1, fa_version=found[1])  # fmt: skip


def timed(calls: Sequence[Callable[[], Any] | None], replays: int = 5) -> float | str:
    """Microseconds of one call; nothing where there are none, or vLLM refuses the operands."""
    present = [call for call in calls if call is not None]
    if not present:
        return ""
    try:
        return round(timing.graph_us(present, replays), 3)
    except Exception as error:
        print("vLLM refuses:", type(error).__name__, str(error)[:100], flush=True)
        return ""
