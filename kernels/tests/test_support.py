"""The launcher that remembers, the plans, the import without Triton, the compiled resources."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from nondet_kernels import matmul_plan as mp
from nondet_kernels import support

PACKAGE = Path(support.__file__).parent


class Kernel:
    """Stands for a Triton kernel: counts compilations, and what each compiled form was run with."""

    def __init__(self) -> None:
        self.compiled = 0
        self.runs: list[tuple[int, tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def first(*args: Any, **constants: Any) -> Any:
            self.compiled += 1
            form, kernel = self.compiled, self

            class Compiled:
                def __getitem__(self, grid: tuple[int, int, int]) -> Any:
                    return lambda *args: kernel.runs.append((form, args))

            return Compiled()

        return first


def test_start_compiles_once_for_each_thing_triton_specialises_on() -> None:
    kernel, x = Kernel(), torch.zeros(64)
    values = [1, 0, 16, 32, 7, 8, -16, 2**31, 2**31 + 3, 2**40 + 16]
    classes = {1: "one", 0: "a", 16: "a", 32: "a", -16: "a", 7: "b", 8: "b",
               2**31: "c", 2**40 + 16: "c", 2**31 + 3: "d"}  # fmt: skip
    for value in values:
        support.start(kernel, (1, 1, 1), (x, value), {"B": 4}, {"num_warps": 1})
    assert kernel.compiled == len(set(classes.values()))
    # Any two values of one class share a compiled form; of different classes, never.
    forms = {}
    for value in values:
        kernel.runs.clear()
        support.start(kernel, (1, 1, 1), (x, value), {"B": 4}, {"num_warps": 1})
        ((forms[value], args),) = kernel.runs
        assert args == (x, value, 4)
    for p, q in itertools.combinations(values, 2):
        assert (forms[p] == forms[q]) == (classes[p] == classes[q]), (p, q)


@pytest.mark.parametrize("change", ["type", "alignment", "constant", "option", "float"])
def test_start_tells_other_launches_apart(change: str) -> None:
    kernel, x = Kernel(), torch.zeros(64)
    support.start(kernel, (1, 1, 1), (x, 2), {"B": 4}, {"num_warps": 1})
    args = {"type": (x.half(), 2), "alignment": (x[1:], 2), "float": (x, 2.0)}.get(change, (x, 2))
    constants = {"B": 8 if change == "constant" else 4}
    support.start(kernel, (1, 1, 1), args, constants, {"num_warps": 2 if change == "option" else 1})
    assert kernel.compiled == 2


def test_slices_know_only_the_weights() -> None:
    assert mp.slices(4096, 4096) == (1, 4096)
    assert mp.slices(1536, 8960) == (2, 4480)
    for n, k in itertools.product([1, 7, 576, 2048, 2049, 151936], [1, 127, 128, 8191, 8192, 8961]):
        count, length = mp.slices(n, k)
        assert length % mp.SLICE_UNIT == 0
        assert (count - 1) * length < k <= count * length


def test_plans_cover_every_number_of_rows() -> None:
    for shape, rows in mp.table().items():
        bounds = [most for most, _ in rows]
        assert bounds == sorted(set(bounds)), shape
        assert bounds[-1] == 1 << 30
        for _, how in rows:
            assert how.kernel in ("tile", "stream")
            assert how.kernel == "tile" or how.bk <= mp.SLICE_UNIT
    for m, (n, k) in itertools.product(
        [1, 64, 65, 4096], [(1, 1), (5, 999), (1536, 8960), (10**6, 3)]
    ):
        for bits, aligned in ((16, True), (16, False), (32, False), (64, False)):
            how = mp.plan(m, n, k, bits, aligned, 132)
            assert how.kernel == "tile" or aligned
            assert (how.mode == "whole") == (mp.slices(n, k)[0] == 1)


def test_block_k_of_exact_types_does_not_follow_the_rows() -> None:
    """Their blocks are part of the order of additions."""
    for bits in (32, 64):
        assert (
            len(
                {
                    mp.generic(m, n, bits, c, 132).bk
                    for m in (1, 16, 17, 5000)
                    for n in (1, 5000)
                    for c in (1, 2)
                }
            )
            == 1
        )


def test_everything_imports_without_triton() -> None:
    names = sorted(p.stem for p in PACKAGE.glob("*.py") if p.stem != "__init__")
    code = (
        "import sys, importlib, torch\n"
        "sys.modules['triton'] = None\n"
        f"for name in {names!r}: importlib.import_module('nondet_kernels.' + name)\n"
        "from nondet_kernels import matmul, support\n"
        "try: matmul.matmul(torch.ones(2, 2), torch.ones(2, 2))\n"
        "except support.KernelUnavailable as error: print(error)\n"
    )
    path = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "triton is not installed" in done.stdout


def test_kernels_is_no_package() -> None:
    """The name belongs to a Hugging Face package that transformers imports."""
    assert not (PACKAGE.parent / "__init__.py").exists()


COMPILE = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton, triton.language as tl
from nondet_kernels import matmul_kernels as mk, matmul_plan as mp
found = {}
for m, n, bits in ((1, 1, 32), (64, 1, 32), (5000, 7, 32), (64, 64, 16), (64, 1, 64)):
    how = mp.generic(m, n, bits, 1, 132)
    kind = {16: "bf16", 32: "fp32", 64: "fp64"}[bits]
    const = dict(BM=how.bm, BN=how.bn, BK=how.bk, SWAP=False, MODE="whole", EVEN_K=False,
                 WIDE=False, HAS_C=True, PLAIN=False, PRECISION="ieee", BLOCKED=bits > 16, S=1,
                 ACC=tl.float64 if bits == 64 else tl.float32)
    names = mk.tile_kernel.arg_names
    def kind_of(name):
        if name in const: return "constexpr"
        if name in ("ws_ptr",): return "*fp32"
        if name == "counter_ptr": return "*i32"
        if name.endswith("_ptr"): return "*" + kind
        return "fp32" if name in ("alpha", "beta") else "i32"
    source = ASTSource(mk.tile_kernel, {name: kind_of(name) for name in names},
                       {(names.index(name),): value for name, value in const.items()}, {})
    done = triton.compile(source, target=GPUTarget("cuda", 80, 32),
                          options=dict(num_warps=how.warps, num_stages=how.stages))
    found[f"{m},{n},{bits}"] = done.metadata.shared
print(json.dumps(found))
"""


def test_generic_plans_fit_small_gpus() -> None:
    """N = 1 in FP32 once asked for 131,072 bytes elsewhere; consumer parts have 101,376."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shared = json.loads(done.stdout)
    assert len(shared) == 5
    assert max(shared.values()) <= 101_376, shared


def test_no_second_backward_below_autograd() -> None:
    """A replaced aten operation sees inputs that need gradients; torch has recorded its own."""
    seen = []

    def replaced(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        seen.append((torch.is_grad_enabled(), x.requires_grad, support.differentiable(x)))
        return x.exp() / x.exp().sum(dim, keepdim=True)

    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("_softmax", replaced, "CPU")
        x = torch.randn(2, 3, requires_grad=True)
        assert support.differentiable(x)
        torch.softmax(x, 1).sum().backward()
    finally:
        library._destroy()
    assert seen == [(True, True, False)]
    assert not support.differentiable(x.detach(), None)
