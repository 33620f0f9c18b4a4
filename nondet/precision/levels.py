"""A 16-bit model with one part of it in FP32, to see what that part alone is worth.

lm_head   the last product: FP32 activations and logits, the weight read in 16 bits
norms     norms in FP32 with one rounding at their end, and attention from its scores to its
          weighted sum likewise (eager and sdpa)
residual  the stream between the layers in FP32: the embedding's rows are cast, norms read FP32
          and round once, every layer adds its 16-bit result in FP32

A norm is a module that owns vectors only and has no parts; what owns buffers and no parameter makes
tables of positions. So there is no list of classes here either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nondet.invariant.transformers_attention import attention_configs

from .layercast import Forward, replace_forward, wide_parameters
from .products import choose_product, product


class Level:
    """``model`` with one part in FP32, until ``undo``. level: as in ``options``."""

    def __init__(self, model: Any, level: str, asked: str = "auto") -> None:
        self.model, self.level = model, level
        self.half = next(p.dtype for p in model.parameters())
        self.changed: list[str] = []
        self._undo: list[Callable[[], None]] = []
        if level == "lm_head":
            self._lm_head(choose_product(asked, next(model.parameters()).device))
        elif level == "norms":
            self._each(is_norm, self._norm)
            self._attention()
        elif level == "residual":
            embedding = model.get_input_embeddings()
            self._replace("input embeddings", embedding, lambda f: lambda ids: f(ids).float())
            self._each(is_norm, self._norm)
            self._each(is_table, self._narrow_outputs)
            self._each(lambda m: isinstance(m, nn.Linear), self._narrow_inputs)

    def undo(self) -> None:
        """Give every module its own forward back."""
        while self._undo:
            self._undo.pop()()

    def observed(self) -> dict[str, Any]:
        """What was changed, as JSON values."""
        return {"level": self.level, "modules": len(self.changed), "first": self.changed[:3]}

    def _replace(self, name: str, module: nn.Module, make: Callable[[Forward], Forward]) -> None:
        self.changed.append(name)
        self._undo.append(replace_forward(module, make(module.forward)))

    def _each(
        self, wanted: Callable[[nn.Module], bool], make: Callable[[nn.Module, Forward], Forward]
    ) -> None:
        for name, module in self.model.named_modules():
            if wanted(module):
                self._replace(name, module, lambda f, m=module: make(m, f))  # type: ignore[misc]

    def _lm_head(self, way: str) -> None:
        head = self.model.get_output_embeddings()

        def make(_: Forward) -> Forward:
            return lambda x: product(x.float(), head.weight, head.bias, way == "fused")

        self._replace("output embeddings", head, make)

    def _norm(self, module: nn.Module, forward: Forward) -> Forward:
        def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            with wide_parameters(module):
                return self._narrow(forward(x.float(), *args, **kwargs))

        return call

    def _narrow_outputs(self, _: nn.Module, forward: Forward) -> Forward:
        return lambda *args, **kwargs: self._narrow(forward(*args, **kwargs))

    def _narrow_inputs(self, _: nn.Module, forward: Forward) -> Forward:
        return lambda x: forward(x.to(self.half))

    def _narrow(self, result: Any) -> Any:
        def narrow(value: Any) -> Any:
            wide = isinstance(value, Tensor) and value.dtype == torch.float32
            return value.to(self.half) if wide else value

        return tree_map(narrow, result)

    def _attention(self) -> None:
        """Attention that is given 16-bit queries, keys and values, and rounds its result.

        It stands behind the name that the model came with: models ask for that name. A model that
        computes attention by itself keeps it as it is.
        """
        from transformers import AttentionInterface

        configs, _ = attention_configs(self.model)
        if not configs:
            return
        own, wide = configs[0]._attn_implementation, {id(config): config for config in configs}
        functions = AttentionInterface._global_mapping
        inner = functions.get(own)  # none for eager: every model's file has its own

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
                   attention_mask: Tensor | None, **kwargs: Any) -> Any:  # fmt: skip
            function = inner or sys.modules[type(module).__module__].eager_attention_forward
            if id(getattr(module, "config", None)) not in wide:
                return function(module, query, key, value, attention_mask, **kwargs)
            q, k, v = query.float(), key.float(), value.float()
            if attention_mask is not None and attention_mask.is_floating_point():
                attention_mask = attention_mask.float()
            out, weights = function(module, q, k, v, attention_mask, **kwargs)
            return out.to(query.dtype), weights

        functions[own] = attend
        self._undo.append(lambda: functions.update({own: inner}) if inner else functions.pop(own))
        self.changed.append("attention")


def is_norm(module: nn.Module) -> bool:
    """Whether a module owns parameters, all of them are vectors, and it has no parts.

    An attention may own the vector of its sinks.
    """
    own = list(module.parameters(recurse=False))
    return bool(own) and all(p.dim() <= 1 for p in own) and not list(module.children())


def is_table(module: nn.Module) -> bool:
    """Whether a module owns float buffers and no parameter, as rotary tables do."""
    buffers = [b for b in module.buffers(recurse=False) if b.is_floating_point()]
    return bool(buffers) and not list(module.parameters(recurse=False))
