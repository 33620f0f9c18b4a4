"""backend=hf: Hugging Face transformers in process, ``model.generate`` in left-padded waves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nondet.backends.base import Backend, Request, Response
from nondet.backends.recorder import Record, Recorder
from nondet.environment import cpu_count, gpu_names
from nondet.parallel.check import check_cut
from nondet.precision.options import OPTIONS as PRECISION
from nondet.precision.options import check_precision
from nondet.settings import KERNELS, Setting, SettingError

if TYPE_CHECKING:
    from nondet.parallel.group import Group

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
CACHES = ("dynamic", "static", "none")
LOGPROBS_MODE = "raw logits, log_softmax in float32"


class HFBackend(Backend):
    """Greedy or seeded sampling through ``model.generate``; no state between waves."""

    name: ClassVar[str] = "hf"
    kernels: ClassVar[tuple[str, ...]] = KERNELS
    cache_bytes: int = 0  # of the largest wave so far

    def __init__(self, setting: Setting, model_path: str, group: Group | None = None) -> None:
        """group: the rank that this process is; left out, ``start`` makes it rank 0 of all."""
        super().__init__(setting, model_path)
        self.group = group

    @classmethod
    def packages(cls) -> tuple[str, ...]:
        return ("torch", "transformers", "triton", "flash-attn", "flash-attn-3")

    @classmethod
    def check(cls, setting: Setting) -> None:
        """Raise SettingError for what transformers cannot do."""
        options = dict(setting.backend.options)
        _among("attention", setting.attention, ATTENTION)
        check_precision(setting)
        check_cut(setting)
        cache, graph = options.pop("cache", "dynamic"), options.pop("cuda_graph", False)
        cudnn = options.pop("cudnn_attention", None)
        if not isinstance(cudnn, bool | None):
            raise SettingError("backend.cudnn_attention", cudnn, "true or false")
        _among("backend.cache", cache, CACHES)
        if not isinstance(graph, bool) or (graph and cache != "static"):
            raise SettingError("backend.cuda_graph", graph, "false without backend.cache=static")
        if options.get("kv_cache", "auto") != "auto" and cache == "none":
            raise SettingError(
                "backend.kv_cache", options["kv_cache"], "auto with backend.cache=none"
            )
        _among("batching", setting.batching, ("wave", "varied"))
        for key, value in options.items():
            if key in PRECISION:
                continue
            raise SettingError(f"backend.{key}", value, "left out: backend=hf has no such option")
        if setting.model.name == "endpoint":
            raise SettingError("model", "endpoint", "a model on disk with backend=hf")

    @classmethod
    def check_device(cls, setting: Setting, device: str) -> None:
        """Raise SettingError for what needs a GPU where there is none."""
        options = setting.backend.options
        if device != "cpu":
            return
        if options.get("cuda_graph"):
            raise SettingError("backend.cuda_graph", True, "false on a CPU")
        if options.get("product") == "fused":
            raise SettingError("backend.product", "fused", "auto or plain on a CPU")
        if setting.attention.startswith("flash"):
            valid = "eager, sdpa or flex_attention on a CPU"
            raise SettingError("attention", setting.attention, valid)

    def start(self) -> None:
        """Load model and tokenizer and set every switch that moves bits."""
        import torch
        import transformers

        from nondet.parallel.team import seat
        from nondet.precision.load import load_model
        from nondet.precision.switches import set_switches

        setting = self.setting
        set_switches(
            tf32=setting.tf32,
            reduced_precision=setting.reduced_precision,
            threads=setting.threads or cpu_count(),
        )
        transformers.logging.set_verbosity_error()
        self.group = self.group or seat(setting, self.model_path, _device(setting.device))
        self.device = self.group.device
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.model_path)
        self.model, self.precision = load_model(self.model_path, setting, self.device)
        model = self.model
        if setting.gpus > 1 or setting.kernels == "tp_invariant":
            from nondet.parallel.shard import shard

            shard(model, self.group, setting.kernels)
        self.stop_ids = _stop_ids(model, self.tokenizer)
        # A model folder may ask for penalties or sampling; a run asks for neither.
        self.dropped = model.generation_config.to_diff_dict()
        model.generation_config = transformers.GenerationConfig()
        self.scope = ExitStack()
        if setting.backend.options.get("cudnn_attention") is False:
            before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
            self.scope.callback(torch.backends.cuda.enable_cudnn_sdp, before)
            torch.backends.cuda.enable_cudnn_sdp(False)
        if setting.kernels != "default":
            from nondet.invariant import invariant_kernels

            self.scope.enter_context(invariant_kernels(self.model))
        self.graphs = None
        if setting.backend.options.get("cuda_graph", False):
            from nondet.backends.hf_graph import DecodeGraphs

            self.graphs = DecodeGraphs(self.model)
            self.scope.callback(self.graphs.undo)
        self.group.meet()

    def generate(self, wave: Sequence[Request]) -> list[Response]:
        """Answer one wave, padded on the left to its longest prompt (or ``pad_to``)."""
        import torch
        import transformers

        from nondet.precision.memory import cache_bytes

        if not wave:
            return []
        setting = self.setting
        width = max(max(len(r.prompt_tokens), r.pad_to) for r in wave)
        ids = torch.full((len(wave), width), self.stop_ids[0], dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(wave):
            ids[row, width - len(request.prompt_tokens) :] = torch.tensor(request.prompt_tokens)
            mask[row, width - len(request.prompt_tokens) :] = 1
        seeds = [request.seed for request in wave]
        recorder = Recorder(setting.top_k, setting.temperature, setting.top_p, seeds)
        options: dict[str, Any] = {}
        cache = setting.backend.options.get("cache")
        if cache == "static":
            options["cache_implementation"] = "static"
        elif cache == "none":  # every token from the whole sequence again
            options["use_cache"] = False
        config = transformers.GenerationConfig(
            max_new_tokens=setting.max_new_tokens,
            do_sample=False,
            eos_token_id=list(self.stop_ids),
            pad_token_id=self.stop_ids[0],
            disable_compile=True,
            return_dict_in_generate=True,
            **options,
        )
        # Left alone, a static cache is never shorter than that of any wave before, and attention
        # over another number of keys has other bits: a resumed run would differ from a whole one.
        self.model._previous_max_cache_length = -1
        began = time.perf_counter()
        assert self.group is not None  # made by start
        with self.group.wave(wave), torch.inference_mode():
            output = self.model.generate(
                ids.to(self.device),
                attention_mask=mask.to(self.device),
                generation_config=config,
                logits_processor=transformers.LogitsProcessorList(
                    [recorder, *self.group.checks(recorder)]
                ),
            )
        if self.graphs is not None:
            self.graphs.forget()
        assert recorder.first is not None
        self.first_token_s = recorder.first - began
        self.cache_bytes = max(self.cache_bytes, cache_bytes(output) or 0)
        return self._responses(wave, recorder.record())

    def _responses(self, wave: Sequence[Request], record: Record) -> list[Response]:
        responses = []
        for row, request in enumerate(wave):
            tokens = record.tokens[row]
            ends = np.flatnonzero(np.isin(tokens, self.stop_ids))
            length = int(ends[0]) + 1 if len(ends) else len(tokens)
            tokens = tokens[:length]
            text = self.tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
            reason, note = "stop" if len(ends) else "length", ""
            broken = np.flatnonzero(np.isnan(record.logprobs[row, :length]))
            if len(broken):  # as when fp16 overflows: what follows is no answer
                reason, note = "error", f"NaN among the logits at position {broken[0]}"
            responses.append(
                Response(
                    request.item_id,
                    tokens,
                    record.logprobs[row, :length],
                    record.top_ids[row, :length],
                    record.top_logprobs[row, :length],
                    reason,
                    text,
                    note,
                )
            )
        return responses

    def observed(self) -> dict[str, Any]:
        """Read back from the model and torch, not from what was asked."""
        import torch

        from nondet.precision.switches import read_switches

        assert self.group is not None  # made by start
        model = self.model
        dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
        found = {
            "logprobs_mode": LOGPROBS_MODE,
            "model_class": type(model).__name__,
            "parameters": sum(p.numel() for p in model.parameters()),
            "parameter_dtypes": sorted(dtypes),
            "attention": model.config._attn_implementation,
            "device": str(self.device),
            "cache": self.setting.backend.options.get("cache", "dynamic"),
            "graph_replays": None if self.graphs is None else self.graphs.replays,
            "stop_ids": list(self.stop_ids),
            "generation_config_dropped": {k: str(v) for k, v in self.dropped.items()},
            "switches": read_switches(),
            **self.group.observed(),
            **self.precision.observed(self.stop_ids[0]),
        }
        if self.setting.kernels != "default":
            from nondet.invariant import observed as invariant_observed

            found["invariant"] = invariant_observed()
            found["kernels"] = found["invariant"]["kernels"]
        if self.device.type == "cuda":
            found["sdpa_backends"] = {
                name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
                for name in ("flash", "mem_efficient", "math", "cudnn")
            }
        return found

    def memory_mb(self) -> dict[str, float | None]:
        """Weights as they are stored, and the cache of the largest wave."""
        from nondet.precision.memory import weight_bytes

        return {
            "weights_mb": weight_bytes(self.model) / 1e6,
            "cache_mb": self.cache_bytes / 1e6 or None,
        }

    def close(self) -> None:
        """Leave the invariant kernels and the other ranks, and drop the model."""
        if hasattr(self, "scope"):
            self.scope.close()
        if hasattr(self, "precision"):
            self.precision.undo()
        if self.group is not None:
            self.group.close()
        self.model = None


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if gpu_names() else "cpu"
    return name


def _stop_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    ids = model.generation_config.eos_token_id
    listed = ids if isinstance(ids, list) else [ids]
    found = dict.fromkeys([*listed, tokenizer.eos_token_id])
    stops = tuple(int(token) for token in found if token is not None)
    if not stops:
        raise ValueError("the model names no end token (generation_config.eos_token_id)")
    return stops


def _among(key: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise SettingError(key, value, "one of " + ", ".join(valid))
