"""Property cases in several runs and parts, and finding vLLM's kernels; without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cases
import peers
import pytest
import timing
import torch


def even(name: str, seed: int) -> dict[str, Any]:
    """A case that leaves a trace of having been run; odd seeds above 6 differ, seed 4 fails."""
    with Path(os.environ["TRACE"]).open("a") as file:
        file.write(f"{seed}\n")
    if seed == 4:
        raise MemoryError("no more")
    same = torch.tensor(seed <= 6 or seed % 2 == 0)
    return dict(op=name, dtype="float32", seed=seed, alone=same, elements=0)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE", str(tmp_path / "trace"))
    monkeypatch.setattr(timing, "hardware", lambda: {"gpu": "none"})
    return tmp_path / "trace"


def run(*words: str) -> list[dict[str, Any]]:
    given = cases.arguments([*words, "--processes", "1"])
    return cases.run(even, [[("op", seed)] for seed in given.seeds], given)


def test_a_later_run_makes_the_missing_cases_only(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    first = run(str(out), "--draws", "4")
    assert [row["alone"] for row in first] == [True] * 4
    ledger = out.with_suffix(".rows.jsonl")
    ledger.write_text(ledger.read_text()[:-9])  # killed while it wrote the last row
    rows = run(str(out), "--draws", "9")
    made = sorted(map(int, trace.read_text().split()))
    assert made == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]
    # What differs and what failed counts, and is not tried until it succeeds.
    assert cases.report(out, rows, ["op"], ["alone"]) == 2
    assert cases.report(out, run(str(out), "--draws", "9"), ["op"], ["alone"]) == 2
    assert len(trace.read_text().split()) == len(made)
    assert "op,float32,8,1" in out.read_text()


def test_parts_make_the_whole(trace: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    run(str(one), "--draws", "5", "--part", "1/2")
    rows = run(
        str(two), "--draws", "5", "--part", "2/2", "--join", str(one.with_suffix(".rows.jsonl"))
    )
    assert sorted(map(int, trace.read_text().split())) == list(range(5))
    assert len(rows) == 5
    with pytest.raises(SystemExit):
        cases.arguments(["x.csv", "--part", "3/2"])


def test_rows_of_other_code_are_refused(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"
    run(str(out), "--draws", "0")
    monkeypatch.setattr(cases, "code", lambda function: "another")
    with pytest.raises(ValueError, match="was made with"):
        run(str(out), "--draws", "1")


@pytest.mark.parametrize("home", peers.HOMES)
def test_vllms_kernels_are_found_in_either_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    parts = home.split(".")
    for i in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), ModuleType(parts[i - 1]))
    sys.modules["vllm"].__version__ = "0.0"  # type: ignore[attr-defined]
    module = ModuleType(home)
    module.__dict__.update(
        resolve_tuned_matmul_configs=lambda: calls.append("tuned"),
        mean_dim=lambda x, dim: calls.append(("mean", dim)),
        rms_norm_batch_invariant=lambda x, w, eps: calls.append(("norm", eps)),
    )
    for other in peers.HOMES:
        monkeypatch.setitem(sys.modules, other, module if other == home else None)
    peers.module.cache_clear()
    try:
        x = torch.ones(2, 3)
        for name in ("mean", "mean_outer", "rms_norm"):
            call = peers.rows(name, x[0])
            assert call is not None
            call(x)
        assert calls == ["tuned", ("mean", -1), ("mean", 0), ("norm", 1e-6)]
        assert peers.rows("log_softmax", x[0]) is None
        assert peers.rows("argmax", x[0]) is None
        assert peers.version() == "0.0"
    finally:
        peers.module.cache_clear()


def varlen(q: Any, k: Any, v: Any, max_seqlen_q: int, cu_seqlens_q: Any, max_seqlen_k: int,
           cu_seqlens_k: Any = None, seqused_k: Any = None, causal: bool = False,
           num_splits: int = 0, fa_version: int = 2) -> Any:  # fmt: skip
    """With the arguments and defaults of vLLM 0.25 to 0.33, as far as they are used."""
    assert fa_version == 3, "Hopper's binaries hold version 3 alone"
    assert (causal, num_splits, seqused_k) == (True, 1, None)
    assert (max_seqlen_q, max_seqlen_k) == (3, 5)
    assert cu_seqlens_q.tolist() == [0, 3, 6]
    assert cu_seqlens_k.tolist() == [0, 5, 10]
    return q.shape, k.shape, v.shape


def test_vllms_attention_is_asked_as_its_mode_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    home = ModuleType("vllm.vllm_flash_attn")
    home.__dict__.update(flash_attn_varlen_func=varlen, is_fa_version_supported=lambda n: n == 3)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, home.__name__, home)
    peers.flash.cache_clear()
    try:
        q, k = torch.ones(2, 4, 3, 8), torch.ones(2, 2, 5, 8)
        call = peers.attention(q, k, k)
        assert call is not None
        assert call() == ((6, 4, 8), (10, 2, 8), (10, 2, 8))
    finally:
        peers.flash.cache_clear()


def test_a_vllm_that_does_not_import_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> ModuleType:
        if "determinism" in name:
            raise ModuleNotFoundError("none", name="vllm.model_executor.determinism")
        raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")

    monkeypatch.setattr(peers.importlib, "import_module", fail)
    peers.module.cache_clear()
    try:
        assert peers.version() == ""
        said = capsys.readouterr().out
        assert said.count("fails") == 1
        assert "No module named 'msgspec'" in said
    finally:
        peers.module.cache_clear()


def test_without_vllm_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    for home in (*peers.HOMES, "vllm.vllm_flash_attn"):
        monkeypatch.setitem(sys.modules, home, None)
    peers.module.cache_clear()
    peers.flash.cache_clear()
    x = torch.ones(1, 2, 3, 4)
    assert peers.rows("rms_norm", x) is None
    assert peers.attention(x, x, x) is None
    assert peers.timed([peers.attention(x, x, x)]) == ""
    peers.module.cache_clear()
    peers.flash.cache_clear()
