"""Options of backend=hf that choose a precision, and which of them go together. No torch here."""

from __future__ import annotations

from nondet.settings import Setting, SettingError

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
OPTIONS: dict[str, tuple[str, ...]] = {
    "fp32": ("none", "lm_head", "norms", "residual"),
    "kv_cache": ("auto", "bf16"),
    "product": ("auto", "fused", "plain"),
}
"""Options of backend=hf that belong here; the first value is the default."""


def option(setting: Setting, name: str) -> str:
    """The value of one of ``OPTIONS``."""
    return str(setting.backend.options.get(name, OPTIONS[name][0]))


def check_precision(setting: Setting) -> None:
    """Raise SettingError for precisions that transformers models cannot be run in."""
    _one_of("dtype", setting.dtype, (*DTYPES, "layercast"))
    for name, valid in OPTIONS.items():
        _one_of(f"backend.{name}", option(setting, name), valid)
    wide = setting.dtype in ("fp32", "layercast")
    if wide and setting.attention.startswith("flash"):
        raise SettingError("attention", setting.attention, f"eager or sdpa with {setting.dtype}")
    level = option(setting, "fp32")
    if level != "none" and wide:
        raise SettingError("backend.fp32", level, "none unless dtype is bf16 or fp16")
    if level == "norms" and (
        setting.kernels != "default" or setting.attention[:4] not in ("eage", "sdpa")
    ):
        wanted = "used with kernels=default and attention=eager or sdpa"
        raise SettingError("backend.fp32", level, wanted)
    if option(setting, "kv_cache") != "auto" and not wide:
        raise SettingError("backend.kv_cache", "bf16", "auto unless dtype is layercast or fp32")
    cast = setting.dtype == "layercast" or level == "lm_head"
    if option(setting, "product") != "auto" and not cast:
        wanted = "auto unless dtype=layercast or backend.fp32=lm_head"
        raise SettingError("backend.product", option(setting, "product"), wanted)


def _one_of(key: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise SettingError(key, value, "one of " + ", ".join(valid))
