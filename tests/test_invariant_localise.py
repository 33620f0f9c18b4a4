"""python -m nondet.localise: exit codes, and how rows of two passes are matched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_invariant_experts import KINDS
from test_invariant_experts import made as with_experts
from test_invariant_families import FAMILIES, made
from tiny_llama import make_tiny_llama

from nondet.invariant import invariant_kernels, transformers_experts
from nondet.invariant.localise import Finding, compare, localise, row_of
from nondet.invariant.recording import EXPERTS, Record, Recorder
from nondet.invariant.transformers_experts import own_loop
from nondet.localise import main


def recorded(*steps: list[tuple[str, list[torch.Tensor], list[torch.Tensor]]]) -> Recorder:
    return Recorder([[Record(op, "m", ins, outs) for op, ins, outs in step] for step in steps])


def test_rows_are_found_by_shape() -> None:
    many = torch.arange(24).view(4, 2, 3)
    assert torch.equal(row_of(many, torch.zeros(1, 2, 3), 4, 2), many[2:3])  # type: ignore[arg-type]
    flat = many.view(8, 3)
    assert torch.equal(row_of(flat, torch.zeros(2, 3), 4, 1), flat[2:4])  # type: ignore[arg-type]
    assert row_of(many, torch.zeros(4, 2, 3), 4, 2) is many  # weights: the same for both
    assert row_of(many, torch.zeros(1, 2, 2), 4, 2) is None
    assert row_of(many, torch.zeros(2, 3), 4, 2) is None


def test_the_first_operation_with_equal_inputs_is_named() -> None:
    x, y, z = torch.ones(1, 2), torch.zeros(1, 2), torch.full((1, 2), 2.0)
    both = torch.cat([x, x])
    alone = recorded([("a", [x], [y]), ("b", [y], [z])])
    good = recorded([("a", [both], [torch.cat([y, x])]), ("b", [torch.cat([y, x])], [both * 2])])
    assert compare(alone, good, 2, 0) == Finding("identical")
    bad = recorded([("a", [both], [torch.cat([y, x])]), ("b", [torch.cat([y, x])], [both * 3])])
    found = compare(alone, bad, 2, 0)
    assert (found.status, found.operation, found.index) == ("located", "b", 1)
    assert (found.differing, found.elements, found.largest) == (2, 2, 1.0)
    other = recorded([("a", [both], [torch.cat([y, x])]), ("c", [both], [both])])
    assert compare(alone, other, 2, 0).status == "unmatched"
    shorter = recorded([("a", [both], [torch.cat([y, x])])])
    assert "inconclusive" in str(compare(alone, shorter, 2, 0))
    # A result that differs only because its inputs already did is not the place to look.
    late = recorded([("a", [both * 5], [both * 5]), ("b", [both * 5], [both * 5])])
    assert compare(alone, late, 2, 0).status == "inherited"


def test_memory_without_a_result_and_the_order_of_experts_are_no_fault() -> None:
    x, y = torch.ones(1, 2), torch.zeros(1, 2)
    both = torch.cat([x, x])
    for name in ("aten::new_empty", "aten::sort.stable"):
        alone, many = recorded([(name, [x], [y])]), recorded([(name, [both], [both])])
        assert compare(alone, many, 2, 0).status in ("identical", "inherited")


@pytest.mark.parametrize(("kind", "attention", "sizes", "_"), FAMILIES)
def test_passes_are_matched_where_a_reshape_copies_in_one_of_them(
    kind: str, attention: str, sizes: dict[str, Any], _: list[str]
) -> None:
    model, row = made(kind, attention, sizes), list(range(3, 23))
    others = [[(token * shift) % 297 + 3 for token in row] for shift in (2, 5, 7)]
    assert localise(model, row, others, row=1, steps=1).status != "unmatched"
    with invariant_kernels(model):
        assert localise(model, row, others, row=1, steps=1).status == "identical"


@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_one_operation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows decide which experts run, so inside there is nothing to match; a fault is seen."""
    model, row = with_experts(kind), list(range(3, 23))
    others = [[(token * shift) % 297 + 3 for token in row] for shift in (2, 5, 7)]
    assert localise(model, row, others, row=1).status in ("identical", "located")
    with invariant_kernels(model):
        assert localise(model, row, others, row=1).status == "identical"

    def blend(module: torch.nn.Module, hidden: torch.Tensor, *args: Any) -> torch.Tensor:
        loop = own_loop(module)
        assert loop is not None
        result: torch.Tensor = loop(module, hidden, *args)
        return result + 0.01 * hidden.mean()  # a little of every row

    monkeypatch.setattr(transformers_experts, "switched_experts", blend)
    with invariant_kernels(model):
        found = localise(model, row, others, row=1)
    assert (found.status, found.operation, found.step) == ("located", EXPERTS, 0)
    assert found.module.startswith("model.layers.0.")


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(make_tiny_llama(tmp_path / "tiny", hidden_size=384, intermediate_size=688))
    base = ["--model", model, "--dtype", "fp32", "--steps", "1", "--batch-size", "4"]
    assert main([*base, "--kernels", "invariant"]) == 0
    assert "identical" in capsys.readouterr().out
    assert main(base) == 1
    assert "same inputs, other outputs" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main([*base[:-1], "1"])
    assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        main([*base, "--row", "4"])
    assert stopped.value.code == 2
