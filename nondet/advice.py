"""What in an engine's state breaks determinism: the setting, the reason, the cure.

Pure: from a setting and what was observed to a list. ``python -m nondet.doctor`` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nondet.backends.candidates import RAW_LOGPROBS
from nondet.settings import Setting

Observed = Mapping[str, Any]


@dataclass(frozen=True)
class Advice:
    """One warning. ``cure`` is what to set instead, as one would type it."""

    setting: str
    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.setting}\n    why:  {self.reason}\n    cure: {self.cure}"


Rule = Callable[[Setting, Observed], Iterator[Advice]]


def advise(setting: Setting, observed: Observed) -> list[Advice]:
    """Every warning for an engine in this state, the gravest first."""
    return [found for rule in RULES for found in rule(setting, observed)]


def _mode(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if setting.kernels == "invariant" and seen.get("kernels") != "invariant":
        yield Advice(
            "kernels=invariant is not in force",
            "the process that runs the kernels did not enter the mode",
            "read the engine's log; set the mode's variable before the process starts",
        )
    elif setting.kernels == "default" and setting.batch_size > 1:
        yield Advice(
            f"kernels=default with batch_size={setting.batch_size}",
            "kernels are chosen by shape, so a row's sums depend on how many rows there are",
            "kernels=invariant"
            if _has_mode(seen)
            else "batch_size=1, or kernels=invariant on a GPU",
        )


def _has_mode(seen: Observed) -> bool:
    """vLLM's and SGLang's modes exist on GPUs alone."""
    states = seen.get("workers")
    return states is None or any(state.get("gpu") for state in states)


def _two_patches(setting: Setting, seen: Observed) -> Iterator[Advice]:
    states = seen.get("workers") or [seen]
    sources = {
        source for state in states for source in state.get("replaced_operations", {}).values()
    }
    if len(sources) > 1:
        yield Advice(
            "operations replaced by " + " and ".join(sorted(sources)),
            "two libraries patch the same process; which one acts depends on their order",
            "keep one: the engine's own mode or the other patch",
        )


def _known_holes(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if seen.get("kernels") != "invariant":
        return
    if re.match(r"vllm 0\.25\.", str(seen.get("engine"))):
        yield Advice(
            f"kernels=invariant in {seen['engine']}",
            "fused_add_rms_norm takes another block from 256 tokens a step on, and with it another "
            "order of sums (vllm #48271; measured in results/measured/h200/engines)",
            "a later vLLM (block pinned by vllm #48391)",
        )


def _uncovered(setting: Setting, seen: Observed) -> Iterator[Advice]:
    for name in seen.get("invariant", {}).get("uncovered", []):
        yield Advice(
            f"kernels=invariant leaves out: {name}",
            "this part of the model runs on torch's kernels, which follow the batch",
            "none for this model: do not read its runs as invariant",
        )


def _cache(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if seen.get("prefix_caching"):
        yield Advice(
            "prefix_caching=true",
            "a hit shortens the prefill, so its shapes depend on what was asked before",
            "backend.prefix_caching=false",
        )
    if "fp8" in str(seen.get("kv_cache_dtype")):
        yield Advice(
            f"kv_cache_dtype={seen['kv_cache_dtype']}",
            "8-bit keys and values: scales and tiles differ between prefill and decode",
            "backend.kv_cache_dtype=auto",
        )


def _prefill(setting: Setting, seen: Observed) -> Iterator[Advice]:
    chunk, longest = seen.get("chunk_tokens"), seen.get("max_length")
    if not seen.get("chunked_prefill") or not chunk or not longest:
        return
    if chunk < longest * seen.get("together", 1):
        yield Advice(
            f"chunked_prefill=true with chunk_tokens={chunk}",
            "where a long prompt is cut depends on what else is in the step",
            f"backend.chunk_tokens={longest * seen.get('together', 1)}, or shorter prompts",
        )


def _graphs(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if seen.get("kernels") == "invariant":
        return
    if seen.get("cuda_graph") not in (None, "none"):
        yield Advice(
            f"cuda_graph={seen['cuda_graph']}",
            "batches are padded to captured sizes, and graphs hold other kernels than eager",
            "backend.cuda_graph=none, or compare only runs with the same graph sizes",
        )
    if seen.get("compile_level"):
        yield Advice(
            f"compile_level={seen['compile_level']}",
            "compiled code fuses and splits sums by shape",
            "backend.eager=true",
        )


def _attention(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if seen.get("cascade_attention") and seen.get("kernels") != "invariant":
        yield Advice(
            "cascade attention may be used",
            "many requests with a common prefix switch to another attention kernel",
            "kernels=invariant switches it off; or keep batches small",
        )


def _scales(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if "fp8" in str(seen.get("quantization")):
        yield Advice(
            f"quantization={seen['quantization']}",
            "a dynamic scale over the whole batch lets one row move every other row",
            "weights in 16 bits, or scales for each token",
        )


def _tensor_parallel(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if setting.gpus < 2:
        return
    yield Advice(
        f"gpus={setting.gpus}",
        "each number of GPUs adds partial sums in another order, also with kernels=invariant",
        "compare only runs with the same gpus, or take backend=hf kernels=tp_invariant",
    )
    for state in seen.get("workers") or []:
        switches = state.get("switches", {})
        algo, version = switches.get("NCCL_ALGO", ""), str(state.get("nccl") or "0")
        if not nccl_algo_fits(algo, version):
            yield Advice(
                f"NCCL_ALGO={algo} with NCCL {version}",
                "from 2.31 on, collectives that the list leaves out have no algorithm at all",
                "NCCL_ALGO=ring,tree;allreduce:tree",
            )
            return


def nccl_algo_fits(algo: str, version: str) -> bool:
    """Whether an NCCL_ALGO string leaves an algorithm to every collective of an NCCL version.

    A string of parts ``collective:algorithms``, separated by ``;``; a part without a collective
    counts for all. Before 2.31 the rest kept their defaults (source note of vLLM 0.33).
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not algo or numbers < (2, 31):
        return True
    return any(":" not in part for part in algo.split(";"))


def _numbers(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if setting.tf32:
        yield Advice("tf32=true", "FP32 products keep 10 bits of the fraction", "tf32=false")
    states = seen.get("workers") or []
    on_gpu = any(state.get("gpu") for state in states)
    if on_gpu and any("True" in str(s.get("bf16_reduced_precision")) for s in states):
        yield Advice(
            "reduced_precision=true",
            "partial sums of 16-bit products may be added in 16 bits",
            "reduced_precision=false",
        )
    if states and not on_gpu and setting.threads is None:
        yield Advice(
            f"threads=null ({states[0].get('threads')} here)",
            "the number of CPU threads decides how sums are split",
            "threads=N, the same in all runs",
        )


def _sampling(setting: Setting, seen: Observed) -> Iterator[Advice]:
    is_sglang = str(seen.get("engine")).startswith("sglang")
    if setting.temperature > 0 and is_sglang and seen.get("kernels") != "invariant":
        yield Advice(
            f"temperature={setting.temperature:g} with kernels=default",
            "SGLang uses a request's seed in its deterministic mode alone",
            "kernels=invariant",
        )


def _cudnn_attention(setting: Setting, seen: Observed) -> Iterator[Advice]:
    """cuDNN's kernels take 16-bit types alone; torch leaves them out in deterministic mode
    (pytorch #182551). What was seen: results/measured/h200/repeat_hf."""
    eligible = seen.get("device") == "cuda" and (seen.get("sdpa_backends") or {}).get("cudnn")
    plain = setting.kernels == "default" and setting.attention == "sdpa"
    if eligible and plain and setting.dtype in ("bf16", "fp16"):
        yield Advice(
            f"attention=sdpa with dtype={setting.dtype} on a GPU",
            "torch may choose cuDNN's attention, which did not repeat itself in bf16 on an H200: "
            "equal calls differed from 129 keys on, and without it equal runs agreed",
            "backend.cudnn_attention=false, or kernels=invariant",
        )


def _endpoint(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if not str(seen.get("engine")).startswith("endpoint"):
        return
    yield Advice(
        "an endpoint schedules by arrival",
        "which requests share a step depends on time and on other clients",
        "batch_size=1 without backend.load_rate, or backend=vllm in process",
    )
    if seen.get("token_ids") != "ids":
        yield Advice(
            f"token_ids={seen.get('token_ids')}",
            "the endpoint gives no token ids, so tokens are told apart by their bytes",
            "an endpoint with return_token_ids (vLLM, SGLang)",
        )
    if not seen.get("logprobs"):
        yield Advice(
            "no log-probabilities",
            "only a changed token can be seen, not a changed number",
            "an endpoint that gives logprobs",
        )
    if len(seen.get("system_fingerprints") or {}) > 1:
        yield Advice(
            "system_fingerprint changed",
            "the endpoint answered with several configurations",
            "run again; compare only answers of one fingerprint",
        )


def _logprobs(setting: Setting, seen: Observed) -> Iterator[Advice]:
    if seen.get("logprobs_mode") != RAW_LOGPROBS:
        yield Advice(
            f"logprobs_mode={seen.get('logprobs_mode')}",
            "log-probabilities of another definition are compared with no other backend's",
            "backend.raw_logprobs=true if the endpoint is known to give raw ones",
        )


RULES: tuple[Rule, ...] = (
    _mode,
    _two_patches,
    _cudnn_attention,
    _known_holes,
    _uncovered,
    _cache,
    _prefill,
    _attention,
    _scales,
    _tensor_parallel,
    _sampling,
    _graphs,
    _numbers,
    _endpoint,
    _logprobs,
)
