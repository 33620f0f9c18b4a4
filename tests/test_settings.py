"""Settings: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json

import pytest

from nondet.settings import Setting, SettingError, setting_from

BAD = [
    ({"batch_size": 0}, "batch_size=0: must be a whole number of at least 1"),
    ({"batch_size": -3}, "batch_size=-3"),
    ({"batch_size": "four"}, "batch_size=four"),
    ({"batch_size": True}, "batch_size=True"),
    ({"batch_size": 2.0}, "batch_size=2.0"),
    ({"gpus": 0}, "gpus=0"),
    ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ({"repeat": -1}, "repeat=-1"),
    ({"threads": 0}, "threads=0"),
    ({"dtype": "bf17"}, "dtype=bf17: must be one of bf16, fp16, fp32, layercast"),
    ({"kernels": "fast"}, "kernels=fast: must be one of default, invariant"),
    ({"padding": "right"}, "padding=right: must be one of none, wave, fixed"),
    ({"batching": "magic"}, "batching=magic"),
    ({"device": "tpu"}, "device=tpu"),
    ({"tf32": "yes"}, "tf32=yes: must be true or false"),
    ({"temperature": -1}, "temperature=-1"),
    ({"temperature": float("nan")}, "temperature=nan"),
    ({"top_p": 0}, "top_p=0: must be above 0"),
    ({"top_p": 1.5}, "top_p=1.5"),
    ({"samples": 2}, "samples=2: must be 1 when temperature is 0"),
    ({"timeout_s": -1}, "timeout_s=-1"),
    ({"task": {"name": "recall", "limit": 0}}, "task.limit=0"),
    ({"task": "recall"}, "task=recall: must be a config group"),
    ({"model": {"name": "hub", "size": 3}}, "model.size=3: must be left out"),
    ({"batchsize": 3}, "batchsize=3: must be left out"),
    ({"temperature": float("inf")}, "temperature=inf: must be a number"),
    ({"timeout_s": float("inf")}, "timeout_s=inf: must be a number"),
    ({"model": {"name": "local", "path": 5}}, "model.path=5: must be a text"),
    ({"model": {"name": "hub", "path": "a/b", "revision": 1234567}}, "model.revision=1234567"),
    ({"model": {"name": None}}, "model.name=None: must be a text"),
    ({"task": {"name": "jsonl", "path": ["a"]}}, "task.path=['a']: must be a text"),
    ({"task": {"name": "jsonl", "marker": ["a"]}}, "task.marker=['a']: must be a text, a number"),
    ({"backend": {"name": "hf", "python": 5}}, "backend.python=5: must be a text"),
    ({"backend": {"name": "hf", "options": 5}}, "backend.options=5: must be a mapping"),
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_values_are_one_line_that_names_them(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        setting_from(values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_json_brings_back_the_same_setting() -> None:
    values = {"backend": {"name": "vllm", "eager": True}, "batch_size": 3, "temperature": 0.5}
    setting = setting_from(values)
    assert setting.backend.options == {"eager": True}
    assert setting_from(json.loads(json.dumps(setting.to_dict()))) == setting


def test_factors_are_flat_and_leave_out_what_is_no_factor() -> None:
    setting = setting_from({"backend": {"name": "vllm", "eager": True}, "repeat": 2})
    factors = setting.factors()
    assert factors["backend"] == "vllm"
    assert factors["eager"] is True
    assert not {"repeat", "timeout_s", "python"} & set(factors)
    assert factors == setting_from({"backend": {"name": "vllm", "eager": True}}).factors()


def test_the_default_setting_is_valid() -> None:
    assert Setting().check() == setting_from({})


def test_a_whole_number_and_the_same_real_one_are_one_setting() -> None:
    whole = setting_from({"temperature": 0, "top_p": 1, "timeout_s": 60})
    real = setting_from({"temperature": 0.0, "top_p": 1.0, "timeout_s": 60.0})
    assert json.dumps(whole.to_dict()) == json.dumps(real.to_dict())
