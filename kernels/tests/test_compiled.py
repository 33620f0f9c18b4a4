"""The plans compiled for sm_90 on the CPU: what the compiler says they need, not what we think.

In processes of their own, because this one runs Triton's interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("triton")


def run(program: str) -> Any:
    """What the program prints last, as JSON."""
    path = os.pathsep.join(str(ROOT / part) for part in ("", "kernels", "kernels/bench"))
    env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


PRODUCT = """
import json, torch
from nondet_kernels import matmul, matmul_launch, matmul_plan
from offline import SHARED, empty, offline
def product(out, limit=SHARED, **change):
    # The largest tile of the table; what was tried, and the plan that is remembered.
    how = matmul_plan.plan(8192, 4096, 4096, 16, True, 132)._replace(**change)
    with offline(limit) as recorder:
        try:
            matmul.bmm(empty(1, 8192, 4096), empty(4096, 4096).t()[None],
                       out=empty(1, 8192, 4096, dtype=out), how=how)
            served = True
        except RuntimeError as error:
            served = "no plan" not in str(error) and str(error)
        kept = [list(plan) for plan in matmul_launch._fits.values()]
        return dict(tried=[[c.kernel, c.stages, c.shared, c.fits] for c in recorder.compiled],
                    kept=kept, served=served)
"""


def test_fp32_results_of_the_largest_tile_give_way_to_what_fits() -> None:
    """Two GPUs once ended here: 278,552 bytes wanted, 232,448 to be had."""
    found = run(PRODUCT + "print(json.dumps(product(torch.float32)))")
    assert found["served"] is True
    *refused, last = found["tried"]
    assert refused
    assert not any(fits for *_, fits in refused)
    assert last[3]
    assert last[2] <= 232_448 < min(shared for _, _, shared, _ in refused)
    assert len(found["kept"]) == 1


def test_what_does_not_fit_is_reported() -> None:
    """The mutations: six stages of the largest tile, and a GPU with next to no shared memory."""
    found = run(PRODUCT + "print(json.dumps([product(torch.bfloat16, stages=6), "
                "product(torch.bfloat16, limit=4096)]))")  # fmt: skip
    six, small = found
    assert [fits for *_, fits in six["tried"]][:2] == [False, False]
    assert six["tried"][0][1:3] == [6, max(shared for _, _, shared, _ in six["tried"])]
    assert six["tried"][-1][3]
    assert six["served"] is True
    assert small["served"] is False
    assert not any(fits for *_, fits in small["tried"])


TF32 = """
import json, torch
from nondet_kernels import attention, matmul
from offline import empty, offline
F = torch.float32
with offline() as recorder:
    for tf32 in (False, True):
        for m in (1, 4, 16):
            recorder.label = ["matmul", tf32]
            matmul.matmul(empty(m, 512, dtype=F), empty(512, 256, dtype=F), allow_tf32=tf32)
            matmul.bmm(empty(2, m, 64, dtype=F), empty(2, 64, 96, dtype=F), allow_tf32=tf32)
        recorder.label = ["attention", tf32]
        keys = empty(2, 2, 300, 64, dtype=F)
        attention.attention(empty(2, 4, 1, 64, dtype=F), keys, keys, allow_tf32=tf32)
    print(json.dumps([[*c.label, c.constants["BM"], c.fits] for c in recorder.compiled
                      if "BN" in c.constants]))
"""


def test_tf32_keeps_tiles_of_sixteen_rows() -> None:
    """Tiles of fewer rows were made for, and compared, without tensor cores."""
    found = run(TF32)
    assert all(fits for *_, fits in found)
    for operation in ("matmul", "attention"):
        rows = {tf32: {bm for name, tf, bm, _ in found if (name, tf) == (operation, tf32)}
                for tf32 in (False, True)}  # fmt: skip
        assert rows[True] == {16}
        assert max(rows[False]) < 16


MIXED = """
import json, torch
from nondet_kernels import mixed
from offline import empty, offline
with offline(101_376) as recorder:
    mixed.mixed_linear(empty(1, 4096, dtype=torch.float32), empty(14336, 4096))
    print(json.dumps([[c.stages, c.fits] for c in recorder.compiled]))
"""


def test_a_mixed_plan_that_does_not_fit_takes_fewer_stages() -> None:
    """Of 120,832 bytes for the widest layer at one row, consumer GPUs have 101,376."""
    found = run(MIXED)
    assert [fits for _, fits in found] == [False] * (len(found) - 1) + [True]
    assert len(found) > 1


EVERY = """
import json
from compile_cases import representatives
from compile_plans import compile_all, line
from offline import offline
with offline() as recorder:
    failed = compile_all(representatives(), recorder)
    failed = [(case.operation, case.sizes, error) for case, error in failed]
    print(json.dumps(dict(failed=failed, lines=[line(one) for one in recorder.compiled])))
"""


@pytest.mark.slow
def test_every_kind_of_plan_compiles_and_fits() -> None:
    """Without a detour, but for FP32 results and a bias, which the tables were not made for."""
    found = run(EVERY)
    assert found["failed"] == []
    lines = found["lines"]
    assert {line["operation"] for line in lines} >= {"leaves", "mixed", "attention", "rms_norm"}
    kernels = {line["kernel"] for line in lines}
    assert kernels >= {"tile_kernel", "stream_kernel", "mixed_kernel", "attention_kernel",
                       "norm_kernel", "row_kernel", "chunk_kernel", "write_kernel", "rows_kernel",
                       "columns_kernel", "argmax_kernel"}  # fmt: skip
    modes = {word for line in lines for word in line["plan"].split() if word.startswith("MODE")}
    assert modes >= {"MODE=whole", "MODE=parallel", "MODE=walk", "MODE=spill"}
    tight = [line for line in lines if not line["fits"]]
    assert {line["operation"] for line in tight} == {"matmul_fp32_out", "matmul_bias"}
    assert max(line["shared_bytes"] for line in lines if line["fits"]) <= 232_448
    assert all(0 < line["registers"] <= 255 for line in lines)
