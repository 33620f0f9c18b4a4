"""Mixtures of experts under the switch: a row's bits depend on the row and its experts alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from nondet.invariant import default_kernels, invariant_kernels
from nondet.invariant.bits import same_bits
from nondet.invariant.transformers_experts import NAME

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 300, "num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 3,
    "pad_token_id": 0,
}  # fmt: skip
KINDS = ["mixtral", "qwen3_moe", "olmoe"]


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])]


def made(kind: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**SIZES)).to(dtype).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.15)
    return model


def logits(model: Any, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(ids, use_cache=False).logits
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
def test_a_prompt_keeps_its_bits_among_any_others(
    kind: str, dtype: torch.dtype, device: str
) -> None:
    model = made(kind, dtype).to(device)
    ids = torch.randint(3, 300, (9, 17), generator=torch.Generator().manual_seed(1)).to(device)
    with invariant_kernels(model):
        together = logits(model, ids)
        for row in (0, 4, 8):
            assert same_bits(logits(model, ids[row : row + 1])[0], together[row])
        assert same_bits(logits(model, ids.flip(0)).flip(0), together)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_stays_the_same_and_gets_its_own_experts_back(kind: str) -> None:
    model = made(kind, torch.float32)
    ids = torch.randint(3, 300, (3, 11), generator=torch.Generator().manual_seed(2))
    own, wanted = model.config._experts_implementation, logits(model, ids)
    with invariant_kernels(model):
        assert model.config._experts_implementation == NAME
        torch.testing.assert_close(logits(model, ids), wanted, rtol=1e-4, atol=1e-4)
        with invariant_kernels(model), default_kernels():
            assert same_bits(logits(model, ids), wanted)
        assert model.config._experts_implementation == NAME
    assert model.config._experts_implementation == own != NAME
    assert same_bits(logits(model, ids), wanted)


def test_no_product_over_all_experts_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default calls one; under the switch an implementation that cannot be called is not."""
    from transformers.integrations import moe

    def refuse(*args: Any, **kwargs: Any) -> Tensor:
        raise AssertionError("all experts at once")

    for name in ("grouped_mm", "batched_mm"):
        monkeypatch.setitem(moe.ExpertsInterface._global_mapping, name, refuse)
    model = made("mixtral")
    for module in model.modules():  # older versions do not have it
        module.__dict__.pop("_is_expert_parallel", None)
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(AssertionError, match="all experts at once"):
        logits(model, ids)
    with invariant_kernels(model):
        logits(model, ids)


def test_products_alone_decide_over_experts() -> None:
    model = made("mixtral")
    own = model.config._experts_implementation
    with invariant_kernels(model, ops=("attention",)):
        assert model.config._experts_implementation == own
    with invariant_kernels(model, ops=("matmul",)):
        assert model.config._experts_implementation == NAME
