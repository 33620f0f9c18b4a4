"""One part of a 16-bit model in FP32: which numbers are wide, and that it helps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_invariant_families import FAMILIES, made
from test_invariant_families import logits as padded_logits
from test_layercast import build, logits, rms
from torch import Tensor

from nondet.backends.hf import HFBackend
from nondet.precision.levels import Level, is_norm, is_table
from nondet.settings import SettingError, setting_from

HALF, WIDE = torch.bfloat16, torch.float32
LEVELS = ("lm_head", "norms", "residual")


def seen_types(model: Any) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """Type of the first tensor that went into and came out of every module, in one pass."""
    found: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    handles = []
    for name, module in model.named_modules():

        def hook(_: Any, args: Any, kwargs: Any, out: Any, name: str = name) -> None:
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
            result = out[0] if isinstance(out, tuple) else out
            if given and isinstance(result, Tensor):
                found[name] = (given[0].dtype, result.dtype)

        handles.append(module.register_forward_hook(hook, with_kwargs=True))
    logits(model)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("name", ["llama", "qwen3, norms of heads"])
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_wide_and_what_is_not(level: str, name: str) -> None:
    model = build(name)
    change = Level(model, level)
    types = seen_types(model)
    layer = "model.layers.1"
    stream = WIDE if level == "residual" else HALF
    assert types[f"{layer}"] == (stream, stream)
    assert types[f"{layer}.input_layernorm"] == (stream, HALF)
    assert types[f"{layer}.mlp.down_proj"] == (HALF, HALF)
    assert types[f"{layer}.self_attn.o_proj"] == (HALF, HALF)
    assert types["model.norm"] == (stream, HALF)
    assert types["lm_head"] == (HALF, WIDE if level == "lm_head" else HALF)
    change.undo()
    assert set(seen_types(model).values()) <= {(HALF, HALF), (torch.int64, HALF)}


@pytest.mark.parametrize("level", LEVELS)
def test_the_logits_change_and_come_back(level: str) -> None:
    model = build("llama")
    truth = logits(copy.deepcopy(model).double())
    before = logits(model)
    change = Level(model, level)
    found = logits(model)
    assert not torch.equal(found.float(), before.float())
    assert rms(found, truth) < 1.2 * rms(before, truth)
    change.undo()
    assert torch.equal(logits(model), before)
    if level != "norms":  # what a wide stream and wide logits are for
        assert rms(found, truth) < rms(before, truth)


def test_norms_also_widen_attention() -> None:
    model = build("llama")
    kinds: list[torch.dtype] = []
    import transformers.models.llama.modeling_llama as llama

    own = llama.eager_attention_forward

    def attend(module: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        kinds.append(query.dtype)
        return own(module, query, *args, **kwargs)

    llama.eager_attention_forward = attend
    try:
        change = Level(model, "norms")
        logits(model)
        assert set(kinds) == {WIDE}
        change.undo()
        kinds.clear()
        logits(model)
        assert set(kinds) == {HALF}
    finally:
        llama.eager_attention_forward = own


@pytest.mark.parametrize(("kind", "attention", "sizes", "_"), FAMILIES)
def test_wide_norms_change_rounding_and_not_the_model(
    kind: str, attention: str, sizes: dict[str, Any], _: list[str]
) -> None:
    model = made(kind, attention, sizes).to(HALF)
    before = padded_logits(model)
    change = Level(model, "norms")
    assert ("attention" in change.changed) == (kind not in ("falcon", "bloom"))
    assert float((padded_logits(model) - before).abs().max()) < 0.3
    change.undo()
    assert torch.equal(padded_logits(model), before)


def test_norms_and_tables_are_told_by_what_they_own() -> None:
    model = build("qwen3, norms of heads")
    norms = [name for name, module in model.named_modules() if is_norm(module)]
    tables = [name for name, module in model.named_modules() if is_table(module)]
    assert len(norms) == 2 * 4 + 1
    assert tables == ["model.rotary_emb"]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"backend": {"fp32": "all"}}, "backend.fp32"),
        ({"dtype": "layercast", "backend": {"fp32": "residual"}}, "backend.fp32"),
        ({"kernels": "invariant", "backend": {"fp32": "norms"}}, "backend.fp32"),
        ({"backend": {"kv_cache": "bf16"}}, "backend.kv_cache"),
        ({"dtype": "fp32", "backend": {"product": "plain"}}, "backend.product"),
        ({"backend": {"product": "magic"}}, "backend.product"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        HFBackend.check(setting_from({**values, "backend": {"name": "hf", **values["backend"]}}
                                     if "backend" in values else values))  # fmt: skip
    assert caught.value.key == key
