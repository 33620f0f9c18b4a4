"""backend=openai against a fake server: every fault is recorded or refused, none dropped."""

from __future__ import annotations

import importlib.metadata
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import check_contract, same_bits
from fake_openai import Fake, serving

from nondet.backends.base import Request, Response
from nondet.backends.openai import OpenAIBackend, engine_versions
from nondet.backends.openai_client import Endpoint, is_local
from nondet.backends.openai_reply import BadReply, Expected, read_reply, token_of
from nondet.settings import SettingError, setting_from

LIMIT = 6
REQUESTS = [Request(f"i{n}", tuple(range(3 + n, 8 + 2 * n)), f"prompt {n}") for n in range(6)]


def make(fake: Fake, *, batch_size: int = 4, factors: Any = None, **options: Any) -> OpenAIBackend:
    backend = {"name": "openai", "url": fake.url, "backoff_s": 0.01, "retries": 2, **options}
    setting = setting_from(
        {
            "backend": backend,
            "batch_size": batch_size,
            "max_new_tokens": LIMIT,
            "top_k": 3,
            **(factors or {}),
        }
    )
    OpenAIBackend.check(setting)
    return OpenAIBackend(setting, "fake")


def ask(
    fake: Fake, requests: list[Request] = REQUESTS, **options: Any
) -> tuple[list[Response], dict[str, Any]]:
    """Answers and what was observed at the end."""
    with serving(fake):
        backend = make(fake, **options)
        backend.start()
        try:
            return backend.generate(requests), backend.observed()
        finally:
            backend.close()


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("style", ["ids", "bytes", "text"])
def test_contract_on_every_kind_of_endpoint(api: str, style: str) -> None:
    with serving(Fake(style)) as fake:
        ids = style == "ids"
        wave = check_contract(lambda: make(fake, api=api), REQUESTS, greedy=ids, ids=ids)
    assert all(response.finish_reason in ("stop", "length") for response in wave)
    assert all(np.isnan(r.logprobs).all() == (style == "text") for r in wave if len(r.tokens))


def test_token_ids_end_token_and_candidates_come_back_as_the_server_has_them() -> None:
    responses, observed = ask(Fake("ids"))
    assert observed["token_ids"] == "ids"
    assert observed["end_token"] == "kept"
    stopped = [r for r in responses if r.finish_reason == "stop"]
    assert stopped
    assert all(r.tokens[-1] == 0 for r in stopped)
    assert all((r.top_ids[:, 0] == r.tokens).all() for r in responses)
    assert all(r.top_logprobs.dtype == np.float32 for r in responses)


def test_without_ids_equal_bytes_are_equal_tokens_and_it_is_said() -> None:
    by_id, _ = ask(Fake("ids"))
    by_bytes, observed = ask(Fake("bytes"))
    assert (observed["token_ids"], observed["end_token"]) == ("bytes", "not given")
    for a, b in zip(by_id, by_bytes, strict=True):
        visible = a.tokens[a.tokens != 0]
        assert [token_of(f" w{token}") for token in visible] == b.tokens.tolist()


def test_the_text_alone_is_compared_by_its_bytes() -> None:
    responses, observed = ask(Fake("text"))
    assert (observed["token_ids"], observed["logprobs"]) == ("text", False)
    assert all(bytes(r.tokens.tolist()).decode() == r.text for r in responses)


@pytest.mark.parametrize(
    "changes",
    [
        {"message": None},
        {"logprobs": {"content": [{"logprob": -0.5}]}},
        {"logprobs": {"content": ["hello"]}},
        {"token_ids": [2**40], "logprobs": {"content": [{"token": f"token_id:{2**40}"}]}},
    ],
    ids=["message", "no token", "no row", "id"],
)
def test_a_reply_of_another_shape_is_an_error_of_that_item(changes: dict[str, Any]) -> None:
    row = {"token": "token_id:7", "logprob": -0.5, "top_logprobs": []}
    good = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "token_ids": [7]}
    good["logprobs"] = {"content": [row]}
    expected = Expected("ids", True, True, 3, LIMIT)
    assert read_reply(REQUESTS[0], {"choices": [good]}, expected).tokens.tolist() == [7]
    with pytest.raises(BadReply) as caught:
        read_reply(REQUESTS[0], {"choices": [{**good, **changes}]}, expected)
    assert caught.value.kind == "malformed reply"


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_model_folder_at_the_endpoint_decides_nothing(api: str) -> None:
    """All that vLLM's and SGLang's servers would take from its generation_config.json."""
    fake = Fake("ids")
    ask(fake, api=api, factors={"temperature": 0.5, "top_p": 0.9})
    neutral = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}
    for body in fake.asked:
        assert {key: body[key] for key in neutral} == neutral
        assert (body["temperature"], body["top_p"]) == (0.5, 0.9)


def test_versions_of_a_served_engine_are_those_of_its_interpreter(tmp_path: Path) -> None:
    import sys

    # Another path, so another interpreter as far as the backend knows.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    here = engine_versions({"serve": "vllm", "serve_python": None})
    assert here["torch"] == importlib.metadata.version("torch")
    assert engine_versions({"serve": "vllm", "serve_python": str(python)}) == here


def test_a_token_hash_is_of_the_bytes_and_a_named_id_is_that_id() -> None:
    assert token_of("token_id:17") == 17
    assert token_of("é") == token_of("?", [0xC3, 0xA9])
    assert token_of(" a") != token_of("a")
    assert 0 <= token_of("x") < 2**31


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("429", "HTTP 429"),
        ("500", "HTTP 500"),
        ("cut", "cut connection"),
        ("malformed", "malformed JSON"),
        ("not_object", "malformed JSON"),
        ("timeout", "timeout"),
    ],
)
def test_a_fault_without_an_answer_is_tried_again_and_recorded(fault: str, kind: str) -> None:
    clean, _ = ask(Fake("ids"), batch_size=1)
    # Long enough for the requests that do get their answer.
    slow = {"request_timeout_s": 3.0} if fault == "timeout" else {}
    responses, observed = ask(Fake("ids", plan={2: fault}), batch_size=1, **slow)
    assert all(same_bits(a, b) for a, b in zip(clean, responses, strict=True))
    assert observed["faults"] == {kind: 1}
    assert observed["notes"] == [["i2", f"after {kind}"]]
    assert [r.note for r in responses] == ["", "", f"after {kind}", "", "", ""]


def test_a_fault_that_stays_is_an_error_of_that_item_after_all_tries() -> None:
    fake = Fake("ids", plan={2: "500", 3: "429", 4: "500"})
    responses, observed = ask(fake, batch_size=1)
    assert [r.finish_reason == "error" for r in responses] == [False, False, True] + [False] * 3
    assert responses[2].note == "no answer: 3 tries: HTTP 500, HTTP 429, HTTP 500"
    assert len(responses[2].tokens) == 0
    assert observed["faults"] == {"HTTP 429": 1, "HTTP 500": 2}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("no_logprobs", "missing logprobs"),
        ("no_ids", "missing token ids"),
        ("two_choices", "duplicated choices"),
        ("no_choices", "no choices"),
        ("other_prompt", "another prompt"),
        ("usage", "wrong token count"),
        ("short", "wrong token count"),
        ("one_entry_less", "wrong token count"),
        ("filtered", "finish_reason"),
        ("disagree", "tokens disagree"),
    ],
)
def test_an_odd_answer_is_refused_and_never_asked_for_again(fault: str, kind: str) -> None:
    fake = Fake("ids", plan={1: fault})
    responses, observed = ask(fake, batch_size=1)
    assert [r.finish_reason == "error" for r in responses] == [False, True] + [False] * 4
    assert responses[1].note.startswith(kind)
    assert observed["notes"] == [["i1", responses[1].note]]
    assert observed["faults"] == {kind: 1}
    assert len(fake.asked) == len(REQUESTS)


def test_the_same_reply_twice_is_refused() -> None:
    responses, observed = ask(Fake("ids", plan={1: "same_id", 4: "same_id"}), batch_size=1)
    assert [r.finish_reason == "error" for r in responses] == [False] * 4 + [True, False]
    assert "came twice" in responses[4].note
    assert observed["faults"] == {"duplicated reply": 1}


def test_minus_9999_is_a_missing_logprob() -> None:
    responses, _ = ask(Fake("ids", plan={1: "minus_9999"}), batch_size=1)
    odd = responses[1]
    assert odd.finish_reason != "error"
    assert np.isnan(odd.logprobs).all()
    assert (odd.top_ids == -1).all()
    assert np.isnan(odd.top_logprobs).all()


def test_a_changed_fingerprint_is_recorded() -> None:
    _, observed = ask(Fake("ids", plan={3: "fingerprint"}), batch_size=1)
    assert observed["system_fingerprints"] == {"fp-a": 5, "fp-b": 1}
    assert observed["faults"] == {"system_fingerprint changed": 1}


def test_answers_that_arrive_in_another_order_are_kept_in_the_order_asked() -> None:
    clean, _ = ask(Fake("ids"), batch_size=1)
    fake = Fake("ids", delay_s=0.03, slowest_first=True)
    responses, _ = ask(fake, batch_size=4)
    assert all(same_bits(a, b) for a, b in zip(clean, responses, strict=True))


def test_batch_size_is_how_many_requests_are_open() -> None:
    for batch_size in (1, 3):
        fake = Fake("ids", delay_s=0.05)
        # The first ones stay open until as many are, however late a thread comes.
        fake.ready = lambda _, fake=fake, size=batch_size: fake.most_open >= size  # type: ignore[misc]
        ask(fake, batch_size=batch_size)
        assert fake.most_open == batch_size


def test_what_is_asked_for() -> None:
    fake = Fake("ids")
    ask(fake, batch_size=1)
    body = fake.asked[0]
    assert body["prompt"] == list(REQUESTS[0].prompt_tokens)
    assert (body["temperature"], body["max_tokens"], body["logprobs"]) == (0.0, LIMIT, 3)
    assert (body["repetition_penalty"], body["top_k"]) == (1.0, -1)
    assert fake.paths[-1] == "/v1/completions"


def test_chat_sends_the_prompt_before_its_template() -> None:
    fake = Fake("bytes")
    ask(fake, batch_size=1, api="chat")
    body = fake.asked[0]
    assert body["messages"] == [{"role": "user", "content": "prompt 0"}]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    assert "return_token_ids" not in body
    assert fake.paths[-1] == "/v1/chat/completions"


def test_each_item_has_its_own_seed_when_sampling() -> None:
    fake = Fake("ids")
    requests = [Request(str(n), (1, 2, n + 3), seed=100 + n) for n in range(3)]
    ask(fake, requests, batch_size=1, factors={"temperature": 0.7})
    assert [body["seed"] for body in fake.asked] == [100, 101, 102]
    assert {body["temperature"] for body in fake.asked} == {0.7}


@pytest.mark.parametrize("temperature", [0.0, 1e-8])
def test_temperature_is_sent_as_asked(temperature: float) -> None:
    fake = Fake("ids")
    ask(fake, batch_size=1, factors={"temperature": temperature})
    assert {body["temperature"] for body in fake.asked} == {temperature}


def test_the_key_comes_from_the_environment_and_is_written_nowhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "sk-secret0123456789abcdef"
    monkeypatch.setenv("MY_KEY", key)
    fake = Fake("ids", plan={1: "401"})
    responses, observed = ask(fake, batch_size=1, api_key_env="MY_KEY")
    assert fake.headers[0]["Authorization"] == f"Bearer {key}"
    assert responses[1].finish_reason == "error"
    assert "HTTP 401" in responses[1].note
    printed = capfd.readouterr()
    written = json.dumps(observed) + responses[1].note + printed.out + printed.err
    assert key not in written
    assert "secret" not in written


def test_a_key_of_another_form_is_cleaned_from_messages() -> None:
    endpoint = Endpoint("http://127.0.0.1:1/v1", "abc.def", 1.0, 0, 0.0)
    try:
        assert endpoint.clean("bad\nkey abc.def or sk-other12345") == "bad key [key] or [key]"
    finally:
        endpoint.close()


def test_a_proxy_of_the_environment_is_not_used_for_this_machine() -> None:
    assert is_local("http://127.0.0.1:8000/v1")
    assert is_local("http://[::1]:8000/v1")
    assert not is_local("https://api.example.org/v1")


def test_an_endpoint_that_is_not_there_is_one_line() -> None:
    backend = make(Fake(url="http://127.0.0.1:9/v1"), retries=1)
    with pytest.raises(RuntimeError, match="no answer: 2 tries: no connection, no connection"):
        backend.start()
    backend.close()


def test_background_load_runs_beside_and_stops_with_the_backend() -> None:
    def load() -> list[dict[str, Any]]:
        return [body for body in fake.asked if isinstance(body["prompt"], str)]

    before: dict[str, int] = {}

    def two_more(body: Mapping[str, Any]) -> bool:
        """Measured requests stay open for two fillers: when the second comes, one is answered."""
        count = len(load())
        if isinstance(body["prompt"], str):
            return True
        return count >= before.setdefault(str(body["prompt"]), count) + 2

    fake = Fake("ids", ready=two_more)
    clean, _ = ask(Fake("ids"), batch_size=1)
    options = {"load_rate": 40.0, "load_tokens": 3, "load_in_flight": 1}
    responses, observed = ask(fake, batch_size=1, **options)
    assert all(same_bits(a, b) for a, b in zip(clean, responses, strict=True))
    assert len(load()) >= 2 * len(REQUESTS)
    assert observed["load"]["sent"] >= 2 * len(REQUESTS)
    assert observed["load"]["failed"] == 0
    assert len(REQUESTS) <= observed["load"]["overlapping"] <= observed["load"]["answered"]
    assert observed["load"]["measured_beside"] == len(REQUESTS)
    assert all(1 <= body["max_tokens"] <= 3 for body in load())
    assert not [t for t in threading.enumerate() if t.name.startswith("load")]


def test_a_request_without_an_answer_says_what_load_it_had() -> None:
    fake = Fake("ids")
    options = {"load_rate": 5.0, "load_in_flight": 3, "load_words": 8, "load_tokens": 2}
    with serving(fake):
        backend = make(fake, batch_size=1, retries=0, request_timeout_s=3.0, **options)
        backend.start()
        try:
            fake.silent = True
            note = backend.generate(REQUESTS[:1])[0].note
        finally:
            backend.close()
    assert note.startswith("no answer: 1 tries: timeout (beside 5 fillers/s of up to 8 words")
    assert "3 in flight" in note


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"load_in_flight": 0}, "backend.load_in_flight"),
        ({"load_rate": -1}, "backend.load_rate"),
        ({"api": "responses"}, "backend.api"),
        ({"nonsense": 1}, "backend.nonsense"),
        ({"prefix_caching": True}, "backend.prefix_caching"),
        ({"serve": "vllm", "serve_python": "/no/such/python"}, "backend.serve_python"),
        ({"factors": {"kernels": "invariant"}}, "kernels"),
        ({"factors": {"gpus": 2}}, "gpus"),
        ({"factors": {"attention": "eager"}}, "attention"),
        ({"fillers": 3}, "backend.fillers"),
    ],
)
def test_a_mistake_names_its_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingError) as caught:
        make(Fake(url="http://127.0.0.1:9/v1"), **changes)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
    if key == "backend.serve_python":
        assert "make venv-vllm" in str(caught.value)


def test_a_needle_whose_fillers_failed_says_so() -> None:
    # Six requests at a time: number 0 to 5 are the first needle and its fillers.
    fake = Fake("ids", plan={0: "no_choices", 1: "no_choices"})
    responses, _ = ask(fake, REQUESTS[:2], batch_size=1, fillers=5)
    failed = responses[0].finish_reason == "error"
    assert responses[0].note.endswith(f"{2 - failed} of 5 fillers failed")
    assert responses[1].note == ""


def test_needle_among_fillers_is_the_same_request() -> None:
    clean, _ = ask(Fake("ids"), batch_size=1)
    fake = Fake("ids")
    responses, observed = ask(fake, batch_size=1, fillers=5)
    assert all(same_bits(a, b) for a, b in zip(clean, responses, strict=True))
    assert observed["together"] == 6
    assert len(fake.asked) == 6 * len(REQUESTS)
    places = [
        [body["prompt"] for body in fake.asked[n * 6 : n * 6 + 6]].index(list(r.prompt_tokens))
        for n, r in enumerate(REQUESTS)
    ]
    assert len(set(places)) > 1
