"""backend=sglang without SGLang: arguments, replies and read-back against a fake engine.

The fake's forms are those of SGLang 0.5.15, which the same backend ran on a GPU
(results/measured/h200/engines).
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from contract import check_contract

from nondet.backends import sglang
from nondet.backends.base import Request
from nondet.backends.candidates import RAW_LOGPROBS
from nondet.backends.sglang import SGLangBackend
from nondet.settings import Setting, SettingError, setting_from

# Tokens of the fake model's longest sequence.
CONTEXT = 64
REQUESTS = [Request(f"i{n}", tuple(range(3, 8 + n)), seed=50 + n) for n in range(4)]


def setting(options: dict[str, Any] | None = None, **factors: Any) -> Setting:
    values = {"batch_size": 4, "max_new_tokens": 6, "top_k": 3, **factors}
    return setting_from({"backend": {"name": "sglang", **(options or {})}, **values})


@dataclass
class ServerArgs:
    """The arguments that 0.5.15 has, as far as they are used."""

    model_path: str = ""
    dtype: str = "auto"
    random_seed: int | None = None
    tp_size: int = 1
    max_running_requests: int | None = None
    disable_radix_cache: bool = False
    kv_cache_dtype: str = "auto"
    mem_fraction_static: float | None = None
    disable_overlap_schedule: bool = False
    enable_deterministic_inference: bool = False
    log_level: str = "info"
    attention_backend: str | None = None
    sampling_backend: str | None = None
    chunked_prefill_size: int | None = None
    context_length: int | None = None
    max_total_tokens: int | None = None
    nccl_port: int | None = None
    disable_cuda_graph: bool = False
    cuda_graph_bs_decode: list[int] | None = None


class Engine:
    """Answers in the forms of SGLang 0.5.15."""

    last: Engine | None = None

    def __init__(self, **arguments: Any) -> None:
        self.args = ServerArgs(**arguments)
        self.calls: list[dict[str, Any]] = []
        self.stopped = False
        Engine.last = self

    def generate(self, **call: Any) -> list[dict[str, Any]]:
        self.calls.append(call)
        limits = [parameters["max_new_tokens"] for parameters in call["sampling_params"]]
        for ids, limit in zip(call["input_ids"], limits, strict=True):
            # As the tokenizer manager and, for the last tokens, the scheduler check it.
            if len(ids) + limit > CONTEXT or len(ids) >= CONTEXT - 6:
                raise ValueError("Requested token count exceeds the model's maximum context length")
        return [
            self.one(ids, limit, call["top_logprobs_num"])
            for ids, limit in zip(call["input_ids"], limits, strict=True)
        ]

    def one(self, ids: list[int], limit: int, k: int) -> dict[str, Any]:
        stop = len(ids) % 2 == 0
        tokens = [100 + len(ids) + step for step in range(limit - 2 if stop else limit)]
        if stop:
            tokens[-1] = 2
        kind = {"type": "stop", "matched": 2} if stop else {"type": "length", "length": limit}
        return {
            "text": "text",
            "output_ids": tokens,
            "meta_info": {
                "finish_reason": kind,
                "output_token_logprobs": [(-0.5, token, None) for token in tokens],
                "output_top_logprobs": [
                    [(-0.5 - rank, token + rank, None) for rank in range(k)] for token in tokens
                ],
            },
        }

    def get_server_info(self) -> dict[str, Any]:
        state = {**vars(self.args), "effective_max_running_requests_per_dp": 4}
        sizes = {"max_total_num_tokens": 4096, "max_req_input_len": CONTEXT - 6}
        told = {"internal_states": [state], "version": "0.5.15.post1"}
        return {**vars(self.args), **sizes, **told}

    def shutdown(self) -> None:
        self.stopped = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package ``sglang`` that holds the fake."""
    module, srt = types.ModuleType("sglang"), types.ModuleType("sglang.srt")
    args = types.ModuleType("sglang.srt.server_args")
    module.__dict__.update(Engine=Engine, __version__="0.5.15.post1", srt=srt)
    args.__dict__.update(ServerArgs=ServerArgs)
    for name, part in (("sglang", module), ("sglang.srt", srt), (args.__name__, args)):
        monkeypatch.setitem(sys.modules, name, part)


@pytest.mark.usefixtures("fake")
def test_contract() -> None:
    check_contract(lambda: SGLangBackend(setting(), "folder"), REQUESTS)
    assert Engine.last is not None
    assert Engine.last.stopped


@pytest.mark.usefixtures("fake")
def test_factors_become_arguments() -> None:
    options = {
        "attention_backend": "triton",
        "prefix_caching": True,
        "chunk_tokens": 512,
        "max_length": 2048,
        "cache_tokens": 4096,
    }
    asked = setting(options, kernels="invariant", dtype="fp16", gpus=2, batch_size=40, seed=7)
    SGLangBackend.check(asked)
    backend = SGLangBackend(asked, "folder")
    backend.start()
    assert Engine.last is not None
    got = Engine.last.args
    assert got.enable_deterministic_inference
    assert not got.disable_radix_cache
    assert (got.dtype, got.tp_size, got.random_seed) == ("float16", 2, 7)
    assert (got.max_running_requests, got.chunked_prefill_size) == (40, 512)
    assert (got.context_length, got.max_total_tokens) == (2048, 4096)
    assert got.cuda_graph_bs_decode == [1, 2, 4, 8, 16, 32, 40]
    backend.close()


@pytest.mark.usefixtures("fake")
def test_engines_that_start_at_once_get_ports_of_their_own() -> None:
    backends = [SGLangBackend(setting(), "folder") for _ in range(3)]
    ports = []
    for backend in backends:
        backend.start()
        assert Engine.last is not None
        ports.append(Engine.last.args.nccl_port)
    assert None not in ports
    assert len(set(ports)) == 3
    for backend in backends:
        backend.close()
    again = SGLangBackend(setting(), "folder")
    again.start()
    assert Engine.last is not None
    assert Engine.last.args.nccl_port == ports[0]
    again.close()


@pytest.mark.usefixtures("fake")
def test_a_version_that_takes_no_port_is_given_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names = sglang.field_names(ServerArgs) - {"nccl_port"}
    monkeypatch.setattr(sglang, "field_names", lambda _: names)
    backend = SGLangBackend(setting(), "folder")
    backend.start()
    assert Engine.last is not None
    assert Engine.last.args.nccl_port is None
    backend.close()


@pytest.mark.usefixtures("fake")
def test_seeds_are_sent_only_when_sampling() -> None:
    for temperature, seeds in ((0.0, [None] * 4), (0.5, [50, 51, 52, 53])):
        backend = SGLangBackend(setting(temperature=temperature), "folder")
        backend.start()
        backend.generate(REQUESTS)
        assert Engine.last is not None
        call = Engine.last.calls[-1]
        assert [p.get("sampling_seed") for p in call["sampling_params"]] == seeds
        assert call["input_ids"] == [list(r.prompt_tokens) for r in REQUESTS]
        assert (call["return_logprob"], call["top_logprobs_num"]) == (True, 3)
        backend.close()


@pytest.mark.usefixtures("fake")
def test_observed_is_what_the_scheduler_says_not_what_was_asked() -> None:
    backend = SGLangBackend(setting(kernels="invariant"), "folder")
    backend.start()
    assert Engine.last is not None
    assert backend.observed()["kernels"] == "invariant"
    Engine.last.args.enable_deterministic_inference = False
    observed = backend.observed()
    assert observed["kernels"] == "default"
    assert observed["read_from"] == "scheduler"
    assert observed["logprobs_mode"] == RAW_LOGPROBS
    assert observed["prefix_caching"] is False
    assert observed["max_num_seqs"] == 4
    backend.close()


@pytest.mark.usefixtures("fake")
def test_what_exceeds_the_length_is_an_error_of_its_own_response() -> None:
    backend = SGLangBackend(setting(max_new_tokens=20), "folder")
    backend.start()
    lengths = (57, 5, 58, 43)
    wave = [Request(f"i{n}", tuple(range(length))) for n, length in enumerate(lengths)]
    found = backend.generate(wave)
    assert [r.item_id for r in found] == ["i0", "i1", "i2", "i3"]
    assert [r.finish_reason for r in found] == ["error", "length", "error", "error"]
    assert [len(r.tokens) for r in found] == [5, 20, 0, 19]
    assert found[0].note == "cut by the engine after 5 of 20 tokens"
    assert found[2].note == "prompt of 58 tokens: this engine takes fewer than 58"
    for response in found:
        assert response.top_logprobs.shape == (len(response.tokens), 3)
    assert backend.generate(wave[2:3])[0].finish_reason == "error"
    observed = backend.observed()
    assert (observed["max_length"], observed["cache_tokens"]) == (62, 4096)
    backend.close()


def test_argument_names_of_a_dataclass_and_of_a_struct() -> None:
    assert "cuda_graph_bs_decode" in sglang.field_names(ServerArgs)
    struct = type("ServerArgs", (), {"__struct_fields__": ("model_path", "dtype")})
    assert sglang.field_names(struct) == {"model_path", "dtype"}


def test_graph_arguments_by_version() -> None:
    assert sglang.graph_arguments(None, 4, {"cuda_graph_bs"}) == {"cuda_graph_bs": [1, 2, 4]}
    assert sglang.graph_arguments("none", 4, {"cuda_graph_bs"}) == {"disable_cuda_graph": True}
    assert sglang.graph_arguments("full", 4, set()) == {}


def test_an_argument_the_version_lacks_is_named() -> None:
    known = {"model_path"}
    options = SGLangBackend(setting(), "folder").options
    with pytest.raises(ValueError, match="no engine argument dtype"):
        sglang.engine_arguments(setting(), "folder", options, known)


def test_tokens_and_logprobs_that_disagree_are_refused() -> None:
    output = Engine().one([1, 2, 3], 4, 2)
    output["output_ids"] = [*output["output_ids"][:-1], 999]
    with pytest.raises(ValueError, match="item a"):
        sglang.response_from("a", output, 2)


def test_an_aborted_request_is_an_error_with_its_reason() -> None:
    output = Engine().one([1, 2, 3], 4, 2)
    output["meta_info"]["finish_reason"] = {"type": "abort", "message": "out of memory"}
    response = sglang.response_from("a", output, 2)
    assert response.finish_reason == "error"
    assert "out of memory" in response.note
    assert response.logprobs.dtype == np.float32


@pytest.mark.parametrize(
    ("options", "factors", "key"),
    [
        ({}, {"device": "cpu"}, "device"),
        ({}, {"tf32": True}, "tf32"),
        ({}, {"reduced_precision": False}, "reduced_precision"),
        ({}, {"dtype": "layercast"}, "dtype"),
        ({"attention_backend": "torch_native"}, {"kernels": "invariant"}, "attention_backend"),
        (
            {"attention_backend": "flashinfer", "prefix_caching": True},
            {"kernels": "invariant"},
            "prefix_caching",
        ),
        ({"chunk_tokens": 64, "chunked_prefill": False}, {}, "chunk_tokens"),
        ({"cuda_graph": "piecewise"}, {}, "cuda_graph"),
        ({"fillers": 3}, {}, "fillers"),
    ],
)
def test_a_mistake_names_its_key(
    options: dict[str, Any], factors: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingError) as caught:
        SGLangBackend.check(setting(options, **factors))
    assert caught.value.key.removeprefix("backend.") == key
