"""dtype=layercast for vLLM: a general plugin that keeps the weights of an FP32 model in 16 bits.

vLLM is started with dtype float32. Linear layers and embeddings then make their weights in 16
bits, where the checkpoint's numbers land unchanged; products read them as ``precision.products``
does, looked up rows are cast. All else (norms, rotary tables, attention, cache, logits) is FP32
as vLLM has it with float32. Vectors such as the weights of norms are stored in FP32.

The plugin does nothing unless NONDET_LAYERCAST names the 16-bit type. Runs and servers of the
backend reach it through ``vllm_worker``, in every process; a vLLM started by hand finds it in the
entry-point group ``vllm.general_plugins`` where this package is installed with it. It may be
called any number of times.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from nondet.precision.products import choose_product, product

SWITCH = "NONDET_LAYERCAST"
_registered = False

# Opaque to torch.compile, which cannot trace the launch of the fused kernel.
_library = Library("nondet", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("layercast_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    fused = choose_product("auto", x.device) == "fused"
    return product(x, weight, bias, fused)


def _shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_library.impl("layercast_linear", _linear, "CPU")  # type: ignore[no-untyped-call]
_library.impl("layercast_linear", _linear, "CUDA")  # type: ignore[no-untyped-call]
torch.library.register_fake("nondet::layercast_linear", _shape, lib=_library)


def stored_dtype() -> torch.dtype | None:
    """The 16-bit type that NONDET_LAYERCAST asks for; None when it is not set."""
    name = os.environ.get(SWITCH)
    return getattr(torch, name) if name in ("bfloat16", "float16") else None


def register() -> None:
    """vLLM's plugin hook: change how its unquantised layers store and use their weights."""
    global _registered
    if stored_dtype() is None or _registered:
        return
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    for method in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        _change(method)
    own = UnquantizedEmbeddingMethod.embedding

    def embedding(self: Any, layer: Any, input_: Tensor) -> Tensor:
        rows: Tensor = own(self, layer, input_)
        return rows.float() if layer.nondet_layercast else rows

    UnquantizedEmbeddingMethod.embedding = embedding
    _registered = True


def _change(method: Any) -> None:
    create, process, apply = (
        method.create_weights,
        method.process_weights_after_loading,
        method.apply,
    )

    def create_weights(self: Any, layer: Any, input_size_per_partition: int,
                       output_partition_sizes: list[int], input_size: int, output_size: int,
                       params_dtype: torch.dtype, **extra: Any) -> None:  # fmt: skip
        layer.nondet_layercast = params_dtype == torch.float32
        kind = stored_dtype() if layer.nondet_layercast else params_dtype
        create(self, layer, input_size_per_partition, output_partition_sizes, input_size,
               output_size, kind, **extra)  # fmt: skip

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        # On a CPU vLLM would repack the weight for its own product.
        if not layer.nondet_layercast:
            process(self, layer)

    def apply_weights(self: Any, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if not layer.nondet_layercast:
            return apply(self, layer, x, bias)  # type: ignore[no-any-return]
        return torch.ops.nondet.layercast_linear(x, layer.weight, bias)  # type: ignore[no-any-return]

    method.create_weights = create_weights
    method.process_weights_after_loading = process_weights_after_loading
    method.apply = apply_weights


def state(model: Any) -> dict[str, Any]:
    """What a started model stores, as JSON values: elements by type, and FP32 matrices by name.

    A matrix in FP32 is a layer that the plugin does not reach, such as a fused stack of experts.
    """
    stored: dict[str, int] = {}
    wide = []
    for name, parameter in model.named_parameters():
        kind = str(parameter.dtype).removeprefix("torch.")
        stored[kind] = stored.get(kind, 0) + parameter.numel()
        if parameter.dtype == torch.float32 and parameter.dim() > 1:
            wide.append(name)
    return {"stored_parameters": stored, "holes": len(wide), "holes_first": wide[:5],
            "product": choose_product("auto", next(model.parameters()).device)}  # fmt: skip
