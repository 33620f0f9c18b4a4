"""backend=sglang: the real SGLang, ``Engine`` in process with its scheduler in a child.

Token ids in and out. ``batch_size`` is both the wave and max_running_requests. Requests of a
wave reach the scheduler one after another, so which of them share a prefill depends on time: that
is SGLang's own behaviour and part of what is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nondet.backends.base import Request, Response
from nondet.backends.candidates import candidate_table
from nondet.backends.engine import DTYPES, SHARED, EngineBackend, cut_short
from nondet.backends.length import answer_short
from nondet.backends.options import Option, read_options, refuse
from nondet.backends.sglang_observed import longest_prompt, longest_sequence, observed
from nondet.backends.sglang_ports import PortClaim
from nondet.backends.vllm import check_engine
from nondet.settings import Setting, SettingError

# Of 0.5.23; flashinfer keeps no prefix cache in deterministic mode.
DETERMINISTIC_ATTENTION = ("fa3", "fa4", "flashinfer", "triton", "ascend", "intel_xpu")
DETERMINISTIC_PREFIX = ("fa3", "fa4", "triton", "ascend")
TABLE: dict[str, Option] = {
    **SHARED,
    "attention_backend": Option(str, help="triton, fa3, flashinfer, ..."),
    "sampling_backend": Option(str, help="pytorch or flashinfer"),
    "prefix_caching": Option(bool, False, help="SGLang's radix cache"),
    "chunked_prefill": Option(bool, help="false: never split a prefill"),
    "chunk_tokens": Option(int, None, 1, help="chunked_prefill_size, tokens"),
    "cuda_graph": Option(str, choices=("none", "full"), help="CUDA graphs of decode steps"),
    "kv_cache_dtype": Option(str, "auto", help="auto, bfloat16, fp8_e5m2, ..."),
    "max_length": Option(int, None, 1, help="context_length, tokens"),
    "memory_fraction": Option(float, 0.85, 0, help="mem_fraction_static"),
    "cache_tokens": Option(int, None, 1, help="max_total_tokens: keys and values of so many"),
    "overlap_schedule": Option(bool, False, help="schedule the next step before this one ends"),
}
# Arguments that every version has (ServerArgs); those of CUDA graphs are looked up.
ARGUMENTS = (
    "model_path",
    "dtype",
    "random_seed",
    "tp_size",
    "max_running_requests",
    "disable_radix_cache",
    "kv_cache_dtype",
    "mem_fraction_static",
    "disable_overlap_schedule",
    "enable_deterministic_inference",
    "log_level",
    "attention_backend",
    "sampling_backend",
    "chunked_prefill_size",
    "context_length",
    "max_total_tokens",
)


class SGLangBackend(EngineBackend):
    """SGLang's ``Engine``. Sampling seeds act in its deterministic mode alone."""

    name: ClassVar[str] = "sglang"
    table: ClassVar[Mapping[str, Option]] = TABLE
    # Known after the start: a prompt has fewer tokens; a prompt with its response at most these.
    longest: int | None = None
    room: int | None = None

    @classmethod
    def check(cls, setting: Setting) -> None:
        """Raise SettingError for what SGLang cannot do."""
        super().check(setting)
        check_engine(setting)
        options = read_options(setting, cls.table)
        refuse(
            setting,
            tf32=(False, "the scheduler is another process"),
            reduced_precision=(True, "the scheduler is another process"),
        )
        if setting.device == "cpu":
            raise SettingError("device", "cpu", "cuda or auto with backend=sglang")
        attention = options["attention_backend"]
        if setting.kernels == "invariant" and attention is not None:
            if attention not in DETERMINISTIC_ATTENTION:
                valid = "one of " + ", ".join(DETERMINISTIC_ATTENTION) + " with kernels=invariant"
                raise SettingError("backend.attention_backend", attention, valid)
            if options["prefix_caching"] and attention not in DETERMINISTIC_PREFIX:
                valid = f"false with kernels=invariant and {attention}"
                raise SettingError("backend.prefix_caching", True, valid)
        if options["chunk_tokens"] and options["chunked_prefill"] is False:
            valid = "null with chunked_prefill=false"
            raise SettingError("backend.chunk_tokens", options["chunk_tokens"], valid)

    @classmethod
    def packages(cls) -> tuple[str, ...]:
        return ("sglang", "sgl-kernel", "sglang-kernel", "torch", "triton", "flashinfer-python")

    @classmethod
    def environment(cls, setting: Setting) -> dict[str, str]:
        """Log-probabilities of the raw logits also when sampling with a temperature."""
        return {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1", "HF_HUB_OFFLINE": "1"}

    def _start(self) -> None:
        import sglang
        from sglang.srt.server_args import ServerArgs

        known = field_names(ServerArgs)
        arguments = engine_arguments(self.setting, self.model_path, self.options, known)
        if "nccl_port" in known:
            self.claim = PortClaim()
            arguments["nccl_port"] = self.claim.port
        self.engine = sglang.Engine(**arguments)
        info = self.engine.get_server_info()
        self.longest, self.room = longest_prompt(info), longest_sequence(info)

    def _answer(self, batch: Sequence[Request]) -> list[Response]:
        below = math.inf if self.longest is None else self.longest
        return answer_short(batch, below, self.setting.top_k, self._ask)

    def _ask(self, batch: Sequence[Request]) -> list[Response]:
        setting = self.setting
        outputs = self.engine.generate(
            input_ids=[list(request.prompt_tokens) for request in batch],
            sampling_params=[sampling(setting, request, self.room) for request in batch],
            return_logprob=True,
            logprob_start_len=-1,
            top_logprobs_num=setting.top_k,
        )
        if len(outputs) != len(batch):
            raise ValueError(f"SGLang gave {len(outputs)} answers to {len(batch)} requests")
        return [
            cut_short(response_from(request.item_id, output, setting.top_k), setting.max_new_tokens)
            for request, output in zip(batch, outputs, strict=True)
        ]

    def observed(self) -> dict[str, Any]:
        """Read back from the state that the scheduler process reports."""
        return {**observed(self.engine.get_server_info()), **self._factors()}

    def _stop(self) -> None:
        engine = self.__dict__.pop("engine", None)
        if engine is not None:
            engine.shutdown()
        if claim := self.__dict__.pop("claim", None):
            claim.close()


def field_names(record: type) -> set[str]:
    """Names of the fields of ServerArgs: a dataclass in 0.5.15, a msgspec.Struct in 0.5.23."""
    names = getattr(record, "__struct_fields__", None)
    return set(names or (field.name for field in dataclasses.fields(record)))


def sampling(setting: Setting, request: Request, room: int | None = None) -> dict[str, Any]:
    """SGLang's sampling parameters of one request.

    room: most tokens of a sequence. SGLang fails the whole wave for a request that asks for more;
    asked for what fits, it cuts this one response, which ``cut_short`` then finds.
    """
    limit = setting.max_new_tokens
    if room is not None:
        limit = min(limit, room - len(request.prompt_tokens))
    parameters: dict[str, Any] = {
        "max_new_tokens": limit,
        "temperature": setting.temperature,
        "top_p": setting.top_p,
        "skip_special_tokens": True,
    }
    if setting.temperature > 0:
        parameters["sampling_seed"] = request.seed
    return parameters


def engine_arguments(
    setting: Setting, model_path: str, options: Mapping[str, Any], known: set[str]
) -> dict[str, Any]:
    """Keyword arguments of ``Engine`` for a setting.

    ``known`` are the argument names of the installed version: the names of the CUDA graph
    arguments changed between 0.5.15 and 0.5.23. Raises ValueError for one that is missing.
    """
    together = setting.batch_size + options["fillers"]
    chunk = options["chunk_tokens"] if options["chunked_prefill"] is not False else -1
    arguments: dict[str, Any] = {
        "model_path": model_path,
        "dtype": DTYPES[setting.dtype],
        "random_seed": setting.seed,
        "tp_size": setting.gpus,
        "max_running_requests": together,
        "disable_radix_cache": not options["prefix_caching"],
        "kv_cache_dtype": options["kv_cache_dtype"],
        "mem_fraction_static": options["memory_fraction"],
        "disable_overlap_schedule": not options["overlap_schedule"],
        "enable_deterministic_inference": setting.kernels == "invariant",
        "log_level": "warning",
    }
    optional = {
        "attention_backend": options["attention_backend"],
        "sampling_backend": options["sampling_backend"],
        "chunked_prefill_size": chunk,
        "context_length": options["max_length"],
        "max_total_tokens": options["cache_tokens"],
    }
    arguments.update({key: value for key, value in optional.items() if value is not None})
    arguments.update(graph_arguments(options["cuda_graph"], together, known))
    for key in arguments:
        if key not in known:
            raise ValueError(f"this SGLang has no engine argument {key}")
    return arguments


def graph_arguments(mode: str | None, together: int, known: set[str]) -> dict[str, Any]:
    """CUDA graph arguments: none, or decode graphs for the batch sizes that can occur.

    Capturing every size takes over a minute, and sizes above the batch are never used.
    """
    if mode == "none":
        return {"disable_cuda_graph": True}
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size < together] + [together]
    for name in ("cuda_graph_bs_decode", "cuda_graph_bs"):
        if name in known:
            return {name: sizes}
    return {}


def response_from(item_id: str, output: Mapping[str, Any], top_k: int) -> Response:
    """A Response from one of the dicts of ``Engine.generate``.

    meta_info.output_token_logprobs holds (logprob, token id, text) a token,
    output_top_logprobs a list of them a token.
    """
    meta = output["meta_info"]
    emitted = meta["output_token_logprobs"]
    tokens = np.asarray(output.get("output_ids") or [row[1] for row in emitted], np.int32)
    if len(tokens) != len(emitted) or any(t != row[1] for t, row in zip(tokens, emitted)):  # noqa: B905
        raise ValueError(f"item {item_id}: {len(tokens)} tokens, {len(emitted)} log-probabilities")
    logprobs = np.asarray([row[0] for row in emitted], np.float32)
    top = meta.get("output_top_logprobs") or [[] for _ in tokens]
    ids_T = [[entry[1] for entry in row or ()] for row in top]
    values_T = [[entry[0] for entry in row or ()] for row in top]
    top_ids, top_logprobs = candidate_table(ids_T, values_T, top_k)
    kind = (meta.get("finish_reason") or {}).get("type")
    reason = kind if kind in ("stop", "length") else "error"
    note = "" if reason != "error" else f"finish_reason {meta.get('finish_reason')}"
    return Response(item_id, tokens, logprobs, top_ids, top_logprobs, reason, output["text"], note)
