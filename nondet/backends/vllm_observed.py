"""What is in force in a started vLLM: its resolved configuration and its kernel processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from nondet.backends.candidates import RAW_LOGPROBS
from nondet.backends.overrides import in_force

# The module moved between 0.20 and 0.33.
INVARIANT_MODULES = (
    "vllm.model_executor.determinism.batch_invariant",
    "vllm.model_executor.layers.batch_invariant",
)


def observed(llm: Any) -> dict[str, Any]:
    """Settings in force in vLLM's ``LLM`` (JSON values)."""
    import vllm

    config = llm.llm_engine.vllm_config
    workers = llm.collective_rpc(worker_state)
    return {
        "engine": f"vllm {vllm.__version__}",
        **from_config(config),
        "attention_backend": workers[0]["attention_backend"],
        "kernels": "invariant" if all(w["invariant"] for w in workers) else "default",
        **switches(workers),
        "workers": workers,
    }


def switches(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numeric switches that all processes have in force; "differs" where they do not agree."""
    found = {
        "tf32": {worker["fp32_precision"] == "tf32" for worker in workers},
        "reduced_precision": {
            "True" in worker["bf16_reduced_precision"] + worker["fp16_reduced_precision"]
            for worker in workers
        },
    }
    return {key: seen.pop() if len(seen) == 1 else "differs" for key, seen in found.items()}


def from_config(config: Any) -> dict[str, Any]:
    """The part of vLLM's resolved configuration that can move bits."""
    scheduler, cache, model = config.scheduler_config, config.cache_config, config.model_config
    compilation = config.compilation_config
    raw = _name(model.logprobs_mode) == "raw_logprobs"
    return {
        "logprobs_mode": RAW_LOGPROBS if raw else f"vllm {_name(model.logprobs_mode)}",
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_num_seqs": scheduler.max_num_seqs,
        "chunk_tokens": scheduler.max_num_batched_tokens,
        "chunked_prefill": bool(scheduler.enable_chunked_prefill),
        "async_scheduling": bool(getattr(scheduler, "async_scheduling", False)),
        "prefix_caching": bool(cache.enable_prefix_caching),
        "kv_cache_dtype": _name(cache.cache_dtype),
        "block_size": cache.block_size,
        "max_length": model.max_model_len,
        "eager": bool(model.enforce_eager),
        "cuda_graph": _name(compilation.cudagraph_mode).lower(),
        "cuda_graph_sizes": list(compilation.cudagraph_capture_sizes or []),
        "compile_level": int(getattr(compilation, "mode", None) or 0),
        "gpus": config.parallel_config.tensor_parallel_size,
        "quantization": None if model.quantization is None else str(model.quantization),
        "cascade_attention": not bool(model.disable_cascade_attn),
    }


def worker_state(worker: Any) -> dict[str, Any]:
    """Runs in each process that computes: attention classes, invariant mode, replaced kernels."""
    import torch

    layers = worker.model_runner.vllm_config.compilation_config.static_forward_context
    fp16 = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    return {
        **in_force(),
        "fp16_reduced_precision": str(fp16),
        "rank": int(getattr(worker, "rank", 0)),
        "attention_backend": ", ".join(sorted(attention_names(layers))),
        "invariant": invariant_mode(),
    }


def attention_names(layers: Mapping[str, Any]) -> set[str]:
    """Names of the attention backends of a model's layers."""
    names = set()
    for layer in layers.values():
        backend = getattr(layer, "attn_backend", None)
        if backend is not None:
            names.add(str(backend.get_name()))
    return names


def invariant_mode() -> bool:
    """Whether vLLM's batch-invariant mode was really entered in this process."""
    for name in INVARIANT_MODULES:
        try:
            module = import_module(name)
        except ImportError:
            continue
        return bool(module._batch_invariant_MODE)
    return False


def _name(value: Any) -> str:
    return str(getattr(value, "name", None) or getattr(value, "value", None) or value)
