"""Models that ask for the name of their attention, or compute it themselves, stay what they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nondet.invariant import default_kernels, invariant_kernels, observed
from nondet.invariant.bits import same_bits

SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                         "vocab_size": 300, "pad_token_id": 0}  # fmt: skip
LATENT: dict[str, Any] = {
    **SIZES, "intermediate_size": 96, "num_key_value_heads": 4, "q_lora_rank": 32,
    "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "index_topk": 4, "index_n_heads": 2, "index_head_dim": 32, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
SOFT = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16}
SINKS = {**SOFT, "num_local_experts": 4, "num_experts_per_tok": 2}
# Kind, attention asked for, sizes, what the record names as not covered.
FAMILIES = [
    ("falcon", "sdpa", SIZES, ["attention by FalconForCausalLM itself"]),
    ("bloom", "eager", SIZES, ["attention by BloomForCausalLM itself"]),
    ("deepseek_v32", "sdpa", LATENT, []),
    ("gemma2", "eager", SOFT, ["attention with softcap"]),
    ("gpt_oss", "eager", SINKS, ["attention with s_aux"]),
]


def made(kind: str, attention: str, sizes: dict[str, Any]) -> Any:
    """A random model of a family, with weights large enough for attention to matter."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**sizes, attn_implementation=attention)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.15)
    return model


def logits(model: Any) -> Tensor:
    """Of three prompts padded on the left; zero where there is padding."""
    ids = torch.randint(3, 300, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :5] = mask[2, :1] = 0
    with torch.inference_mode():
        found: Tensor = model(ids, attention_mask=mask, use_cache=False).logits
    return found * mask[..., None]


@pytest.mark.parametrize(("kind", "attention", "sizes", "uncovered"), FAMILIES)
def test_the_switch_changes_rounding_and_not_the_model(
    kind: str, attention: str, sizes: dict[str, Any], uncovered: list[str]
) -> None:
    model = made(kind, attention, sizes)
    wanted = logits(model)
    with invariant_kernels(model):
        torch.testing.assert_close(logits(model), wanted, rtol=1e-4, atol=1e-4)
        assert observed()["uncovered"] == uncovered
        with default_kernels():
            assert same_bits(logits(model), wanted)
    assert same_bits(logits(model), wanted)
    assert model.config._attn_implementation == attention


def test_a_model_that_is_not_switched_keeps_its_attention() -> None:
    model, other = (made("gemma2", "eager", SOFT) for _ in range(2))
    free = made("deepseek_v32", "sdpa", LATENT)
    wanted = logits(free)
    with invariant_kernels(model, ops=("attention",)):
        assert same_bits(logits(other), logits(model))
        assert same_bits(logits(free), wanted)


def test_a_bias_is_kept_where_the_models_own_function_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.models.t5 import modeling_t5

    config = T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, vocab_size=300,
                      attn_implementation="eager")  # fmt: skip
    model, biases = T5ForConditionalGeneration(config).train(), []
    real = modeling_t5.eager_attention_forward

    def seen(*args: Any, **kwargs: Any) -> Any:
        biases.append(kwargs.get("position_bias"))
        return real(*args, **kwargs)

    monkeypatch.setattr(modeling_t5, "eager_attention_forward", seen)
    ids = torch.arange(3, 8)[None]
    with invariant_kernels(model):  # dropout is not covered
        model(input_ids=ids, decoder_input_ids=ids)
    assert any(bias is not None for bias in biases)
