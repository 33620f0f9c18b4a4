"""Cutting a loaded transformers model by its own tensor-parallel plan.

``model.tp_plan`` names the layers whose outputs ("colwise") and inputs ("rowwise") are dealt out.
The cut is made here and not by ``from_pretrained(tp_plan=...)``: that one changed its mechanics
between releases, and the order of additions, which is what is measured, must be ours to choose.
Embedding and language-model head stay whole on every rank, so that every rank has all logits and
chooses the same token.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from .group import Group
from .layers import ColumnParallel, RowParallel
from .tree import leaf_count

# Layers that stay whole whatever their style says, and styles that leave a layer whole.
WHOLE_LAYERS = ("lm_head", "embed_tokens")
WHOLE_STYLES = ("replicated", "replicated_with_grad_allreduce")
REDUCTIONS = {
    "default": "all_reduce of the process group, in the model's type",
    "invariant": "FP32 sums of {ranks} ranks, gathered and added in their order",
    "tp_invariant": "FP32 sums of up to 8 leaves of K, a tree, gathered from {ranks} ranks",
}


def shard(model: Any, group: Group, kernels: str) -> dict[str, int]:
    """Replace every linear layer of the plan by this rank's part; returns how many of each kind.

    kernels: "default" (torch's products and all_reduce), "invariant" (one leaf a rank: rows do not
    depend on the batch) or "tp_invariant" (the fixed tree: nor on the number of ranks).

    Raises:
        ValueError: the model has no plan, one with styles that are not supported (experts), or
            sizes that the ranks do not divide.
    """
    heads, keys = model.config.num_attention_heads, _key_heads(model.config)
    if heads % group.size or (keys % group.size and group.size % keys):
        raise ValueError(f"{heads} heads with {keys} key heads cannot be dealt to {group.size}")
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    if not plan:
        raise ValueError(f"{type(model).__name__} names no tensor-parallel plan (tp_plan)")
    counts = {"colwise": 0, "rowwise": 0}
    for name, module in list(model.named_modules()):
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None or style in WHOLE_STYLES or name.endswith(WHOLE_LAYERS):
            continue
        if style not in counts or not isinstance(module, nn.Linear):
            raise ValueError(f"{type(model).__name__}: cannot split {name} as {style}")
        dealt = module.out_features if style == "colwise" else module.in_features
        if dealt % group.size:
            raise ValueError(f"{name}: {dealt} cannot be dealt to {group.size}")
        cut = _column if style == "colwise" else _row
        own = keys if name.endswith(("k_proj", "v_proj")) else None
        model.set_submodule(name, cut(module, group, kernels, own))
        counts[style] += 1
    if not all(counts.values()):
        # Some plans name the embeddings alone: every rank would compute the whole model.
        raise ValueError(f"{type(model).__name__}: its tensor-parallel plan deals out no layers")
    _deal_heads(model, group)
    group.reduction = REDUCTIONS[kernels].format(ranks=group.size)
    return counts


def _column(layer: nn.Linear, group: Group, kernels: str, keys: int | None) -> nn.Module:
    rows = _own_rows(layer.out_features, group, keys)
    weight = layer.weight.detach()[rows].clone()
    bias = None if layer.bias is None else layer.bias.detach()[rows].clone()
    if kernels == "tp_invariant":
        return ColumnParallel(weight, bias, layer.out_features)
    part = nn.Linear(layer.in_features, len(weight), layer.bias is not None, device="meta")
    part.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias, requires_grad=False)
    return part


def _own_rows(outputs: int, group: Group, keys: int | None) -> slice:
    """This rank's outputs; of fewer key heads than ranks, the one that its queries look at."""
    if keys is not None and keys < group.size:
        head = outputs // keys
        first = group.rank * keys // group.size * head
        return slice(first, first + head)
    part = outputs // group.size
    return slice(group.rank * part, (group.rank + 1) * part)


def _row(layer: nn.Linear, group: Group, kernels: str, keys: int | None) -> nn.Module:
    part = layer.in_features // group.size
    weight: Tensor = layer.weight.detach()[:, group.rank * part : (group.rank + 1) * part]
    bias = None if layer.bias is None else layer.bias.detach().clone()
    leaves = {
        "default": 0,
        "invariant": 1,
        "tp_invariant": leaf_count(layer.in_features) // group.size,
    }[kernels]
    return RowParallel(weight.clone(), bias, group, leaves)


def _key_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _deal_heads(model: Any, group: Group) -> None:
    """Tell attention how many of this rank's queries share a key head."""
    config = model.config
    keys = max(_key_heads(config) // group.size, 1)
    shared = config.num_attention_heads // group.size // keys
    for module in model.modules():
        if hasattr(module, "num_key_value_groups"):
            module.num_key_value_groups = shared
