"""The short way of linear layers and norms: which modules have one, and that it is taken back."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch
from test_invariant_model import llama
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from nondet.invariant import invariant, modules


class MeanFirst(nn.Module):
    """No RMS norm, whatever its name says."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(16)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * self.weight


class MeanFirstRMSNorm(MeanFirst):
    pass


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (LlamaRMSNorm(16), True),
        (Qwen2RMSNorm(16, eps=1e-5), True),
        (nn.RMSNorm(16, eps=1e-6), True),
        (nn.RMSNorm(16), False),  # its eps follows the type of the input
        (GemmaRMSNorm(16), False),  # scales by 1 + weight
        (nn.LayerNorm(16), False),
        (MeanFirstRMSNorm(), False),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else str(x),
)
def test_norms_are_recognised_by_what_they_compute(module: nn.Module, wanted: bool) -> None:
    assert modules.is_rms_norm(module) is wanted


def changed(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def test_models_on_the_cpu_have_their_short_ways() -> None:
    model = llama(torch.float32)
    norms, layers = 2 * 2 + 1, 2 * 7 + 1
    for groups, count in (("matmul",), layers), (("mean", "pointwise"), norms), (("mean",), 0):
        with invariant(ops=groups, model=model):
            assert len(changed(model)) == count
    assert changed(model) == []


def test_nesting_and_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(torch.float32)
    monkeypatch.setattr(
        modules, "_linear", lambda module: lambda x: type(module).forward(module, x)
    )

    def made(module: nn.Module, groups: frozenset[str], packing: object) -> object:
        return modules._linear(module) if type(module) is nn.Linear else None

    monkeypatch.setattr(modules, "_make", made)

    def on() -> AbstractContextManager[None]:
        return modules.modules_switched(model, frozenset({"matmul"}))

    def inside() -> None:
        with on():
            count = len(changed(model))
            assert count == 2 * 7 + 1
            with on():
                assert len(changed(model)) == count
            assert len(changed(model)) == count
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        inside()
    assert changed(model) == []
