"""The switch: flag and kernels agree, nested, after errors, between threads, compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nondet.invariant import (
    ALL,
    active,
    active_groups,
    default_kernels,
    invariant,
    observed,
    registered_groups,
)
from nondet.invariant import blocks as blocks_module
from nondet.invariant.bits import same_bits
from nondet.settings import SettingError

X = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
W = torch.randn(64, 200, generator=torch.Generator().manual_seed(2))


def runs_ours(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a real call reached the invariant product."""
    hits = []
    real = blocks_module._block

    def counted(*args: object) -> Tensor:
        hits.append(1)
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(blocks_module, "_block", counted)
        call()
    return bool(hits)


def state(monkeypatch: pytest.MonkeyPatch) -> bool:
    """The flag, checked against what a real product does."""
    flag = active("matmul")
    assert runs_ours(lambda: torch.mm(X, W.t()), monkeypatch) == flag
    assert (observed()["kernels"] == "invariant") == bool(active_groups())
    return flag


def test_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not state(monkeypatch)
    with invariant(device="cpu"):
        assert state(monkeypatch)
        assert active_groups() == frozenset(ALL)
    assert not state(monkeypatch)
    assert registered_groups() == frozenset()


def test_nested_on_off_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # K07: the inner block of others left the flag on and the kernels gone.
    outer = invariant(device="cpu")
    with outer:
        with default_kernels():
            assert not state(monkeypatch)
            with outer:
                assert state(monkeypatch)
                with invariant(ops=("mean",), device="cpu"):
                    assert not state(monkeypatch)
                    assert active("mean")
                assert state(monkeypatch)
            assert not state(monkeypatch)
        assert state(monkeypatch)
        with outer, outer:
            assert state(monkeypatch)
        assert state(monkeypatch)
    assert not state(monkeypatch)


def test_an_exception_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_inside() -> None:
        with invariant(device="cpu"):
            with pytest.raises(KeyError), default_kernels():
                raise KeyError
            assert state(monkeypatch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_inside()
    assert not state(monkeypatch)
    assert registered_groups() == frozenset()


def test_a_failed_entry_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from nondet.invariant import switch

    def broken(key: str, kernels: object) -> object:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(switch, "_register", broken)
        with pytest.raises(RuntimeError, match="no"), invariant(device="cpu"):
            pass
    assert not state(monkeypatch)
    assert registered_groups() == frozenset()
    with invariant(device="cpu"):
        assert state(monkeypatch)


def test_settings_are_checked() -> None:
    with pytest.raises(SettingError, match="ops=matmull: must be all, none or some of matmul"):
        invariant(ops=("matmull",))
    with pytest.raises(SettingError, match="device=mps"):
        invariant(device="mps")
    assert invariant(ops="matmul, mean").ops == {"matmul", "mean"}


@pytest.mark.parametrize("group", ["matmul", "mean", "softmax", "pointwise"])
def test_each_group_alone(group: str) -> None:
    with invariant(ops=(group,), device="cpu"):
        assert active_groups() == {group}
        assert registered_groups() == {group}


def test_threads_keep_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread's context neither ends the first one's nor is ended by it."""
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with invariant(ops=("matmul",), device="cpu"):
            seen.append(active_groups())
            inside.set()
            leave.wait(10)
            seen.append(active_groups())

    with invariant(device="cpu"):
        worker = threading.Thread(target=other)
        worker.start()
        assert inside.wait(10)
        with default_kernels():
            assert not state(monkeypatch)
    # This thread is out; the other is still in, and this one now sees the process-wide union.
    assert active_groups() == {"matmul"}
    with default_kernels():
        assert not state(monkeypatch)
    leave.set()
    worker.join()
    assert seen == [{"matmul"}, {"matmul"}]
    assert not state(monkeypatch)
    assert registered_groups() == frozenset()


def test_a_thread_without_a_context_follows_the_process() -> None:
    seen = []
    with invariant(ops=("matmul",), device="cpu"):
        worker = threading.Thread(target=lambda: seen.append(active_groups()))
        worker.start()
        worker.join()
    assert seen == [{"matmul"}]


def test_many_threads_never_see_half_a_state() -> None:
    wrong, stop = [], threading.Event()
    switch = invariant(ops=("matmul",), device="cpu")
    with switch:
        wanted = torch.mm(X, W.t())

    def work() -> None:
        while not stop.is_set():
            with switch:
                if not (active("matmul") and same_bits(torch.mm(X, W.t()), wanted)):
                    wrong.append("on")
            with default_kernels():
                if active("matmul"):
                    wrong.append("off")

    with invariant(ops=("mean",), device="cpu"):
        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        stop.wait(0.5)
        stop.set()
        for worker in workers:
            worker.join()
    assert not wrong
    assert registered_groups() == frozenset()


def test_grad_modes_and_autocast() -> None:
    layer = torch.nn.Linear(200, 64)
    with invariant(device="cpu"):
        plain = layer(X)
        assert plain.requires_grad
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert same_bits(layer(X), plain.detach())
                assert same_bits(layer(X[1:2]), plain.detach()[1:2])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = layer(X)
            assert lower.dtype == torch.bfloat16
            assert same_bits(layer(X[1:2]), lower[1:2])
        plain.square().sum().backward()
    grads = layer.weight.grad
    assert grads is not None
    layer.zero_grad()
    layer(X).square().sum().backward()
    torch.testing.assert_close(grads, layer.weight.grad, rtol=1e-5, atol=1e-4)


def test_gradients_of_rows_are_invariant() -> None:
    with invariant(device="cpu"):
        many = X.clone().requires_grad_()
        torch.log_softmax(torch.mm(many, W.t()), -1)[:, 3].sum().backward()
        one = X[1:2].clone().requires_grad_()
        torch.log_softmax(torch.mm(one, W.t()), -1)[:, 3].sum().backward()
    assert many.grad is not None
    assert one.grad is not None
    assert same_bits(many.grad[1:2], one.grad)


@pytest.mark.slow
def test_compiled_products(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.compile(backend="inductor", dynamic=False)
    def two_layers(x: Tensor) -> Tensor:
        return torch.mm(torch.relu(torch.mm(x, W.t())), W)

    try:
        two_layers(X)
    except Exception as error:  # whatever the compiler lacks: the reason is printed
        pytest.skip(f"torch.compile does not work here: {type(error).__name__}")
    with invariant(device="cpu"), torch.inference_mode():
        wanted = torch.mm(torch.relu(torch.mm(X, W.t())), W)
        assert runs_ours(lambda: two_layers(X), monkeypatch)
        assert same_bits(two_layers(X), wanted)
        assert same_bits(two_layers(X[2:3].clone()), wanted[2:3])
