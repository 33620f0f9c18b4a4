"""Which numbers of ranks a model can be cut for; read from config.json, without torch."""

from __future__ import annotations

import json
from pathlib import Path

from nondet.settings import Setting, SettingError

# Ranks of kernels=tp_invariant are subtrees of eight leaves.
MOST_RANKS = 8


def check_ranks(setting: Setting, device: str) -> None:
    """Raise SettingError for a number of ranks that no model can be cut for here.

    device: "cpu" or "cuda". On a CPU a rank is a process over gloo, whatever the cores.
    """
    ranks, engine = setting.gpus, setting.backend.name
    if device == "cpu" and ranks > 1 and engine != "hf":
        raise SettingError("gpus", ranks, f"1 on a CPU with backend={engine}")
    if device == "cpu" and ranks > MOST_RANKS:
        raise SettingError("gpus", ranks, f"at most {MOST_RANKS} processes on a CPU")
    if setting.kernels == "tp_invariant" and (ranks & (ranks - 1) or ranks > MOST_RANKS):
        raise SettingError("gpus", ranks, "1, 2, 4 or 8 with kernels=tp_invariant")


def check_cut(setting: Setting) -> None:
    """Raise SettingError for options that change the layers which are to be cut."""
    if setting.gpus == 1 and setting.kernels != "tp_invariant":
        return
    where = "with gpus above 1 or kernels=tp_invariant"
    if setting.dtype == "layercast":
        raise SettingError("dtype", "layercast", f"bf16, fp16 or fp32 {where}")
    level = setting.backend.options.get("fp32", "none")
    if level != "none":
        raise SettingError("backend.fp32", level, f"none {where}")
    if setting.gpus > 1 and setting.backend.options.get("cuda_graph"):
        raise SettingError("backend.cuda_graph", True, "false with gpus above 1")


def check_heads(setting: Setting, folder: Path) -> None:
    """Raise SettingError if the attention heads in ``folder``/config.json cannot be dealt out.

    Every rank gets equally many query heads. Key heads are dealt out too, or, where there are
    fewer than ranks, each is kept by equally many ranks.
    """
    ranks, file = setting.gpus, folder / "config.json"
    if ranks == 1 or not file.is_file():
        return
    config = json.loads(file.read_text())
    config = config.get("text_config") or config
    heads = config.get("num_attention_heads")
    if heads is None:
        return
    if heads % ranks:
        valid = f"a divisor of the model's {heads} attention heads ({_divisors(heads)})"
        raise SettingError("gpus", ranks, valid)
    keys = config.get("num_key_value_heads") or heads
    if keys % ranks and ranks % keys:
        raise SettingError(
            "gpus", ranks, f"a divisor or a multiple of the model's {keys} key heads"
        )
    width = config.get("intermediate_size")
    if isinstance(width, int) and width % ranks:
        raise SettingError("gpus", ranks, f"a divisor of the model's intermediate_size, {width}")


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
