"""What is in force in a started SGLang, from the state that its processes report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nondet.backends.candidates import RAW_LOGPROBS

READ_BACK = (
    "dtype",
    "kv_cache_dtype",
    "max_running_requests",
    "chunked_prefill_size",
    "sampling_backend",
    "tp_size",
    "random_seed",
    "page_size",
    "disable_overlap_schedule",
    "disable_custom_all_reduce",
    "enable_torch_compile",
    "quantization",
)


def observed(info: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in force, from ``get_server_info`` (JSON values).

    internal_states come from the scheduler processes, which run the kernels; the rest is the
    resolved configuration of this process. The list of replaced operations stays there.
    """
    states = [dict(state) for state in info.get("internal_states") or []]
    inner = states[0] if states else {}
    found = {key: _plain(inner.get(key, info.get(key))) for key in READ_BACK}
    invariant = bool(states) and all(s.get("enable_deterministic_inference") for s in states)
    return {
        "engine": f"sglang {info.get('version')}",
        "logprobs_mode": RAW_LOGPROBS,
        "kernels": "invariant" if invariant else "default",
        "invariant_operations": "not reported by SGLang" if invariant else "none",
        "attention_backend": _plain(inner.get("attention_backend", info.get("attention_backend"))),
        "prefix_caching": not inner.get("disable_radix_cache", info.get("disable_radix_cache")),
        "cuda_graph": "none" if inner.get("disable_cuda_graph") else "full",
        "max_num_seqs": inner.get(
            "effective_max_running_requests_per_dp", info.get("max_running_requests")
        ),
        "max_length": longest_sequence(info),
        "cache_tokens": info.get("max_total_num_tokens"),
        "read_from": "scheduler" if states else "engine arguments",
        **found,
    }


def longest_prompt(info: Mapping[str, Any]) -> int | None:
    """A prompt has fewer tokens than this; None where the version does not say."""
    found = info.get("max_req_input_len")
    return None if found is None else int(found)


def longest_sequence(info: Mapping[str, Any]) -> int | None:
    """Most tokens of a prompt with its response.

    The scheduler keeps six tokens of the smaller of model length and cache, takes prompts below
    that (max_req_input_len) and lets a response go on for four more.
    """
    below = longest_prompt(info)
    return None if below is None else below + 4


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
