"""Decode steps replayed: without a GPU a replay is the call itself on the inputs it kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_llama import TINY, make_tiny_llama

from nondet.backends.base import Request
from nondet.backends.hf import HFBackend
from nondet.backends.hf_graph import DecodeGraphs
from nondet.settings import SettingError, setting_from


@pytest.fixture(params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny model; transformers gives a Qwen2 a dictionary of masks."""
    made = make_tiny_llama(tmp_path, initializer_range=0.3)
    if request.param == "qwen2":
        import transformers

        small = {**TINY, "vocab_size": 259, "initializer_range": 0.3}
        config = transformers.Qwen2Config(**small, eos_token_id=256)
        transformers.Qwen2ForCausalLM(config).save_pretrained(made)
    return made


def test_replayed_steps_give_the_same_answers(folder: Path) -> None:
    setting = setting_from(
        {"backend": {"name": "hf", "cache": "static"}, "dtype": "fp32", "threads": 1}
    )
    backend = HFBackend(setting, str(folder))
    backend.start()
    waves = [[Request("a", (5, 6, 7)), Request("b", (9,))], [Request("c", (8, 1))]]
    plain = [backend.generate(wave) for wave in waves]
    backend.graphs = graphs = DecodeGraphs(backend.model, capture=lambda call: call)
    replayed = []
    for wave in waves:
        replayed.append(backend.generate(wave))
        # A prompt of one token looks like a decode step: it must find nothing to replay.
        assert (graphs.key, graphs.replay, graphs.inputs) == (None, None, [])
    # A prefill and a warm-up step a wave are not replayed.
    assert graphs.replays == 2 * (setting.max_new_tokens - 2)
    for a, b in zip(plain[0] + plain[1], replayed[0] + replayed[1], strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert np.array_equal(a.logprobs.view(np.int32), b.logprobs.view(np.int32))
    graphs.undo()
    assert "forward" not in vars(backend.model)


@pytest.mark.parametrize("options", [{"cuda_graph": True}, {"cuda_graph": "yes"}])
def test_graphs_need_a_static_cache_on_a_gpu(options: dict[str, object]) -> None:
    with pytest.raises(SettingError) as caught:
        HFBackend.check(setting_from({"backend": {"name": "hf", **options}}))
    assert caught.value.key == "backend.cuda_graph"
