"""backend=hf on the tiny random Llama, against a plain forward pass without cache or padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nondet.backends.base import Request, Response
from nondet.backends.hf import HFBackend
from nondet.settings import SettingError, setting_from

PROMPTS = [(10, 20, 30), (40,), (50, 60, 70, 80, 90, 100, 110), (1, 2)]


def answer(folder: Path, prompts: list[tuple[int, ...]], **changes: Any) -> list[Response]:
    values = {"max_new_tokens": 12, "dtype": "fp32", "threads": 1, **changes}
    backend = HFBackend(setting_from(values), str(folder))
    backend.start()
    try:
        requests = [Request(str(n), prompt, seed=n) for n, prompt in enumerate(prompts)]
        return backend.generate(requests)
    finally:
        backend.close()


def same_bits(a: Response, b: Response) -> bool:
    """Equal tokens and equal log-probabilities, bit by bit."""
    pairs = [(a.tokens, b.tokens), (a.logprobs, b.logprobs), (a.top_logprobs, b.top_logprobs)]
    return all(x.tobytes() == y.tobytes() for x, y in [*pairs, (a.top_ids, b.top_ids)])


def test_greedy_tokens_and_logprobs_are_those_of_full_forward_passes(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for prompt, got in zip(PROMPTS, answer(tiny, PROMPTS), strict=True):
        ids = list(prompt)
        for step, token in enumerate(got.tokens):
            with torch.inference_mode():
                logits = model(torch.tensor([ids])).logits[0, -1].float()
            expected = torch.log_softmax(logits.double(), -1)
            assert int(logits.argmax()) == token
            assert abs(float(expected[token]) - got.logprobs[step]) < 1e-4
            ids.append(int(token))
        assert got.top_ids[:, 0].tolist() == got.tokens.tolist()
        assert (np.diff(got.top_logprobs, axis=1) <= 0).all()


def test_end_tokens_are_kept_and_end_the_response(tiny: Path) -> None:
    long = answer(tiny, PROMPTS)
    assert {r.finish_reason for r in long} == {"length"}
    first = int(long[0].tokens[4])
    # A model folder whose generation config names that token as the end.
    import shutil

    folder = tiny.parent / "stops"
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{first}]}}')
    got = answer(folder, PROMPTS)
    expected = long[0].tokens.tolist().index(first) + 1
    assert len(got[0].tokens) == expected
    assert got[0].tokens[-1] == first
    assert got[0].finish_reason == "stop"
    for short, whole in zip(got, long, strict=True):
        assert short.tokens.tolist() == whole.tokens[: len(short.tokens)].tolist()


def test_a_model_folder_cannot_add_penalties_or_sampling(tiny: Path) -> None:
    import shutil

    folder = tiny.parent / "penalties"
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    asked = (
        '{"eos_token_id": 257, "repetition_penalty": 5.0, "do_sample": true, "temperature": 9.0}'
    )
    (folder / "generation_config.json").write_text(asked)
    for a, b in zip(answer(folder, PROMPTS), answer(tiny, PROMPTS), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.logprobs.tobytes() == b.logprobs.tobytes()


def test_cudnns_attention_is_left_out_for_one_run_alone(tiny: Path) -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    before = enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        options = {"name": "hf", "cudnn_attention": False}
        backend = HFBackend(setting_from({"threads": 1, "backend": options}), str(tiny))
        backend.start()
        assert not enabled()
        backend.close()
        assert enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    with pytest.raises(SettingError, match=r"backend\.cudnn_attention=no: must be true or false"):
        HFBackend.check(setting_from({"backend": {**options, "cudnn_attention": "no"}}))


def test_the_same_wave_twice_gives_the_same_bits(tiny: Path) -> None:
    once, twice = answer(tiny, PROMPTS, dtype="bf16"), answer(tiny, PROMPTS, dtype="bf16")
    assert all(same_bits(a, b) for a, b in zip(once, twice, strict=True))


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_and_batch_do_not_change_fp32_tokens(
    tiny: Path, attention: str, cache: str
) -> None:
    options = {"attention": attention, "backend": {"name": "hf", "cache": cache}}
    together = answer(tiny, PROMPTS, **options)
    for prompt, row in zip(PROMPTS, together, strict=True):
        alone = answer(tiny, [prompt], **options)[0]
        assert alone.tokens.tolist() == row.tokens.tolist()
        np.testing.assert_allclose(alone.logprobs, row.logprobs, rtol=0, atol=1e-4)


def test_sampling_does_not_depend_on_the_batch(tiny: Path) -> None:
    options = {"temperature": 1.0, "top_p": 0.9}
    together = answer(tiny, PROMPTS, **options)
    reversed_order = HFBackend(
        setting_from({"max_new_tokens": 12, "dtype": "fp32", "threads": 1, **options}), str(tiny)
    )
    reversed_order.start()
    requests = [Request(str(n), PROMPTS[n], seed=n) for n in reversed(range(len(PROMPTS)))]
    back = reversed_order.generate(requests)[::-1]
    assert [r.tokens.tolist() for r in back] == [r.tokens.tolist() for r in together]
    assert together[0].tokens.tolist() != answer(tiny, PROMPTS)[0].tokens.tolist()


def test_observed_is_read_back(tiny: Path) -> None:
    backend = HFBackend(setting_from({"attention": "eager", "threads": 1}), str(tiny))
    backend.start()
    seen = backend.observed()
    assert seen["attention"] == "eager"
    assert seen["parameter_dtypes"] == ["bfloat16"]
    assert seen["switches"]["fp32_precision_cuda_matmul"] == "ieee"
    assert seen["switches"]["threads"] == 1
    assert backend.generate([]) == []


def test_the_doctor_believes_invariant_kernels_that_are_in_force(tiny: Path) -> None:
    from nondet.advice import advise

    setting = setting_from({"kernels": "invariant", "threads": 1})
    backend = HFBackend(setting, str(tiny))
    backend.start()
    try:
        assert not [one for one in advise(setting, backend.observed()) if "in force" in str(one)]
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"attention": "magic"}, "attention"),
        ({"dtype": "layercast", "attention": "flash_attention_2"}, "attention"),
        ({"dtype": "fp32", "backend": {"name": "hf", "fp32": "norms"}}, "backend.fp32"),
        ({"batching": "continuous"}, "batching"),
        ({"gpus": 2, "dtype": "layercast"}, "dtype"),
        ({"backend": {"name": "hf", "cache": "paged"}}, "backend.cache"),
        ({"backend": {"name": "hf", "eager": True}}, "backend.eager"),
        (
            {"dtype": "fp32", "backend": {"name": "hf", "cache": "none", "kv_cache": "bf16"}},
            "backend.kv_cache",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        HFBackend.check(setting_from(values))
    assert caught.value.key == key


def test_without_a_cache_every_step_sees_the_whole_sequence(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    widths: dict[str, list[int]] = {"dynamic": [], "none": []}
    forward = LlamaForCausalLM.forward
    for cache, seen in widths.items():

        def watched(self: Any, input_ids: Any, seen: list[int] = seen, **more: Any) -> Any:
            seen.append(input_ids.shape[1])
            return forward(self, input_ids, **more)

        monkeypatch.setattr(LlamaForCausalLM, "forward", watched)
        answer(tiny, [(1, 2, 3)], max_new_tokens=3, backend={"name": "hf", "cache": cache})
    assert widths == {"dynamic": [3, 1, 1], "none": [3, 4, 5]}


def test_a_static_cache_keeps_nothing_of_the_waves_before(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import StaticCache

    lengths: list[int] = []
    made = StaticCache.__init__

    def noted(self: Any, *args: Any, **more: Any) -> None:
        lengths.append(more["max_cache_len"])
        made(self, *args, **more)

    monkeypatch.setattr(StaticCache, "__init__", noted)
    values = {"max_new_tokens": 4, "threads": 1, "backend": {"name": "hf", "cache": "static"}}
    backend = HFBackend(setting_from(values), str(tiny))
    backend.start()
    short, long = Request("short", (1, 2, 3)), Request("long", tuple(range(200)))
    for request in (short, long, short):
        backend.generate([request])
    assert lengths == [6, 203, 6]


def test_logits_that_are_no_numbers_are_an_error_and_no_answer(tiny: Path) -> None:
    backend = HFBackend(setting_from({"max_new_tokens": 4, "threads": 1}), str(tiny))
    backend.start()
    with torch.no_grad():
        backend.model.lm_head.weight[3] = torch.nan
    (response,) = backend.generate([Request("a", (1, 2, 3))])
    assert response.finish_reason == "error"
    assert response.note == "NaN among the logits at position 0"
