"""Loading a transformers model in the number format that a setting asks for.

A 16-bit model is loaded in 16 bits whatever it computes in: no FP32 copy of it is ever made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nondet.settings import Setting

from .options import DTYPES, option


def load_model(path: str, setting: Setting, device: Any) -> tuple[Any, Precision]:
    """The model in evaluation mode on ``device``, and what was done to its precision.

    With dtype=layercast weights are stored as the checkpoint has them, in bf16 if it is FP32.
    """
    import torch
    import transformers

    from .products import HALVES

    if setting.dtype == "layercast":
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        stored = getattr(config, "dtype", None) or _dtype_of_files(path)
        dtype = stored if stored in HALVES else torch.bfloat16
    else:
        dtype = getattr(torch, DTYPES[setting.dtype])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation=setting.attention, local_files_only=True
    )
    model = model.to(device).eval()
    return model, Precision(model, setting)


def _dtype_of_files(path: str) -> Any:
    """float16 if weights are stored in it and none in bfloat16, for a config that does not say."""
    import torch
    from safetensors import safe_open

    kinds = set()
    for file in Path(path).glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            kinds |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    return torch.float16 if "F16" in kinds and "BF16" not in kinds else None


class Precision:
    """What was changed in a model's precision; ``undo`` takes it back."""

    def __init__(self, model: Any, setting: Setting) -> None:
        from .cache import half_cache
        from .layercast import LayerCast
        from .levels import Level

        self.cast: LayerCast | None = None
        self.level: Level | None = None
        self.uncache: Callable[[], None] | None = None
        asked = option(setting, "product")
        if setting.dtype == "layercast":
            self.cast = LayerCast(model, asked)
        if option(setting, "fp32") != "none":
            self.level = Level(model, option(setting, "fp32"), asked)
        if option(setting, "kv_cache") == "bf16":
            self.uncache = half_cache()
        self._summary: dict[str, Any] | None = None

    def observed(self, token: int) -> dict[str, Any]:
        """What is in force, for a run's record; ``token`` is any token id, for one short pass."""
        found: dict[str, Any] = {}
        if self.cast is not None:
            if self._summary is None:
                from .coverage import probe

                self._summary = probe(self.cast, token).summary()
            found["layercast"] = {
                **self._summary,
                "product": self.cast.product,
                "kv_cache": "bfloat16" if self.uncache else "float32",
            }
        if self.level is not None:
            found["fp32"] = self.level.observed()
        return found

    def undo(self) -> None:
        """Give model and cache their own behaviour back."""
        for part in (self.cast, self.level):
            if part is not None:
                part.undo()
        if self.uncache is not None:
            self.uncache()
            self.uncache = None
