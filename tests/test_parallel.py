"""Ranks over gloo: the same answers from 1, 2 and 4, what they refuse, and what a death leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from processes import LONG_S, gone, wait_for
from tiny_llama import make_tiny_llama

from nondet.backends.base import Request, Response
from nondet.backends.hf import HFBackend
from nondet.backends.limits import TIMED_OUT, descendants
from nondet.environment import links_in
from nondet.execute import execute
from nondet.parallel import tree
from nondet.parallel.check import check_cut, check_heads, check_ranks
from nondet.parallel.group import Group
from nondet.parallel.shard import shard
from nondet.plan import plan_run
from nondet.progress import Lines
from nondet.runs import read_run
from nondet.settings import Setting, SettingError, setting_from

# Sharp logits, so that a last bit flips a token now and then: which one is the processor's, so
# there are enough items for some on any.
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
ITEMS, TOKENS = 32, 24


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("sharp"), **SIZES)


def requests() -> list[Request]:
    rng = np.random.default_rng(0)
    return [
        Request(str(n), tuple(rng.integers(0, 250, 5 + 3 * (n % 8)).tolist())) for n in range(ITEMS)
    ]


def answer(folder: Path, gpus: int, kernels: str, **changes: Any) -> list[Response]:
    values = {"max_new_tokens": TOKENS, "threads": 1, "device": "cpu", **changes}
    backend = HFBackend(setting_from({**values, "gpus": gpus, "kernels": kernels}), str(folder))
    try:
        backend.start()
        if gpus > 1:
            seen = backend.observed()
            assert seen["process_group"] == ("nccl" if "cuda" in seen["device"] else "gloo")
            assert (seen["ranks"], len(seen["devices"])) == (gpus, gpus)
            assert ("tree" in seen["reduction"]) == (kernels == "tp_invariant")
        return backend.generate(requests())
    finally:
        backend.close()


def differ(a: list[Response], b: list[Response]) -> tuple[int, int]:
    """Items with other tokens, and with other bits of any log-probability."""
    pairs = list(zip(a, b, strict=True))
    tokens = sum(x.tokens.tobytes() != y.tokens.tobytes() for x, y in pairs)
    bits = sum(
        x.logprobs.tobytes() + x.top_logprobs.tobytes()
        != y.logprobs.tobytes() + y.top_logprobs.tobytes()
        for x, y in pairs
    )
    return tokens, bits


TWO_GPUS = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_two_ranks_answer_as_one_with_the_tree_alone(sharp: Path, device: str) -> None:
    one, two = (answer(sharp, gpus, "default", device=device) for gpus in (1, 2))
    tokens, bits = differ(one, two)
    assert bits == ITEMS
    assert tokens > 0
    wanted = answer(sharp, 1, "tp_invariant", device=device)
    assert differ(wanted, answer(sharp, 2, "tp_invariant", device=device)) == (0, 0)
    assert differ(wanted, one)[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_four_ranks_and_two_key_heads(sharp: Path, dtype: str) -> None:
    # Four ranks share two key heads: each is kept by two of them.
    one, four = (answer(sharp, gpus, "tp_invariant", dtype=dtype) for gpus in (1, 4))
    assert differ(one, four) == (0, 0)
    if dtype == "bf16":
        one, four = (answer(sharp, gpus, "default") for gpus in (1, 4))
        assert differ(one, four)[1] == ITEMS


class Apart(Group):
    """One of several ranks, without the others: what they would say is handed in."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.size = rank, size


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("size", [2, 4])
def test_the_parts_of_a_model_are_the_whole(family: str, size: int) -> None:
    model, whole = (made(family) for _ in range(2))
    parts = []
    for rank in range(size):
        part = made(family)
        counts = shard(part, Apart(rank, size), "tp_invariant")
        assert counts == {"colwise": 10, "rowwise": 4}
        parts.append(part)
    x = torch.randn(5, 64)
    for name in ("q_proj", "k_proj", "v_proj"):
        pieces = [p.model.layers[1].self_attn.get_submodule(name)(x) for p in parts]
        wanted = whole.model.layers[1].self_attn.get_submodule(name)(x)
        if size == 4 and name != "q_proj":  # two ranks keep the same key head
            assert torch.equal(pieces[0], pieces[1])
            pieces = pieces[::2]
        torch.testing.assert_close(torch.cat(pieces, -1), wanted)
    down = [p.model.layers[1].mlp.down_proj for p in parts]
    assert torch.equal(
        torch.cat([layer.weight for layer in down], 1), model.model.layers[1].mlp.down_proj.weight
    )
    assert parts[0].model.layers[0].self_attn.num_key_value_groups == (2 if size == 2 else 1)


def made(family: str) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=100,
    )  # fmt: skip
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def test_a_wrong_order_on_the_way_is_seen(sharp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: one rank that adds its leaves in another order."""
    wanted = answer(sharp, 1, "tp_invariant")

    def crooked(parts: torch.Tensor) -> torch.Tensor:
        if len(parts) == 8:
            parts = parts[[0, 2, 1, 3, 4, 5, 6, 7]]
        return tree.tree_sum(parts)

    monkeypatch.setattr("nondet.parallel.layers.tree_sum", crooked)
    assert differ(wanted, answer(sharp, 1, "tp_invariant"))[1] > 0


def test_ranks_that_part_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from nondet.parallel.group import Ranks

    ranks = Ranks.__new__(Ranks)
    Group.__init__(ranks, torch.device("cpu"))
    ranks.rank, ranks.size = 0, 2
    other = [torch.tensor([3, 4], dtype=torch.int32), torch.tensor([-0.5, -0.0])]

    def gather(bits: torch.Tensor) -> torch.Tensor:
        theirs = torch.stack([value.view(torch.int32) for value in other])
        return torch.stack([bits, theirs])

    monkeypatch.setattr(ranks, "gather", gather)
    ranks.agree(*[value.clone() for value in other])
    with pytest.raises(RuntimeError, match=r"ranks \[1\] have other tokens"):
        ranks.agree(other[0], torch.tensor([-0.5, 0.0]))  # -0.0 is another number's bits


def ranks_below(root: int) -> list[int]:
    """Process ids of ranks 1 and up among the descendants of a process."""
    found = []
    for pid in descendants(root):
        with suppress(psutil.Error):
            if "nondet.parallel.rank" in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_with_its_reason(
    sharp: Path, prompts: Path, tmp_path: Path
) -> None:
    values = {
        "model": {"name": "local", "path": str(sharp)},
        "task": {"name": "jsonl", "path": str(prompts)},
        "gpus": 2, "kernels": "tp_invariant", "device": "cpu", "threads": 1,
        "batch_size": 1, "max_new_tokens": 200, "timeout_s": 900.0,
    }  # fmt: skip
    plan = plan_run(setting_from(values))
    folder, seen = tmp_path / plan.run_id, []

    def kill() -> None:
        seen.extend(wait_for(lambda: ranks_below(os.getpid())))
        # The first wave of eight is on disk: both ranks are in the middle of a later one.
        wait_for(lambda: list(folder.rglob("*.parquet")))
        seen.extend(pid for pid in descendants(os.getpid()) if pid not in seen)
        os.kill(seen[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    status = execute(plan, tmp_path, Lines(), "killed")
    thread.join()
    assert status == "failed"
    assert "rank 1 of 2 was killed by SIGKILL" in read_run(folder).record["reason"]
    assert len(seen) >= 2  # the rank and the worker
    assert gone(seen)


@pytest.mark.slow
def test_a_rank_that_fails_says_why(
    sharp: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import sys\n"
        "if 'nondet.parallel.rank' in ' '.join(sys.orig_argv):\n"
        "    import nondet.parallel.shard as s\n"
        "    def shard(*_): raise MemoryError('no room on this rank')\n"
        "    s.shard = shard\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # This process is rank 0 and would be ended if it took longer to notice.
    monkeypatch.setattr("nondet.parallel.team.GRACE_S", LONG_S)
    before = set(descendants())
    with pytest.raises(RuntimeError, match="rank 1 of 2 failed: MemoryError: no room on this rank"):
        answer(sharp, 2, "default")
    assert set(descendants()) <= before


def check_all(setting: Setting, folder: Path) -> None:
    """What the parent checks of a setting before anything starts."""
    check_cut(setting)
    check_ranks(setting, "cpu")
    check_heads(setting, folder)


@pytest.mark.parametrize(
    ("values", "config", "words"),
    [
        ({"gpus": 2}, {"num_attention_heads": 9, "num_key_value_heads": 3},
         "gpus=2: must be a divisor of the model's 9 attention heads (1, 3, 9)"),
        ({"gpus": 4}, {"num_attention_heads": 12, "num_key_value_heads": 3}, "3 key heads"),
        ({"gpus": 4}, {"num_attention_heads": 12, "intermediate_size": 6}, "intermediate_size, 6"),
        ({"gpus": 2}, {"text_config": {"num_attention_heads": 3}}, "3 attention heads"),
        ({"gpus": 3, "kernels": "tp_invariant"}, {}, "gpus=3: must be 1, 2, 4 or 8"),
        ({"gpus": 16}, {}, "at most 8 processes on a CPU"),
        ({"gpus": 2, "dtype": "layercast"}, {}, "dtype=layercast: must be bf16"),
        ({"kernels": "tp_invariant", "backend": {"fp32": "lm_head"}}, {}, "backend.fp32=lm_head"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(
    values: dict[str, Any], config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    setting = setting_from({"device": "cpu", **values})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError) as caught:
        check_all(setting, tmp_path)
    assert words in str(caught.value)


def test_a_plan_that_deals_out_nothing_is_no_plan() -> None:
    """Else every rank computes the whole model, and the run says that it was cut."""
    import transformers

    config = transformers.GptOssConfig(
        hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=300, num_local_experts=2,
        num_experts_per_tok=1,
    )  # fmt: skip
    model = transformers.GptOssForCausalLM(config)
    with pytest.raises(ValueError, match="GptOssForCausalLM: its tensor-parallel plan deals out"):
        shard(model, Group(torch.device("cpu")), "tp_invariant")


def test_what_can_be_cut(tmp_path: Path) -> None:
    # Qwen2.5-Coder-1.5B: at 4, two ranks share a key head.
    config = {"num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for gpus in (1, 2, 4):
        values = {"gpus": gpus, "kernels": "tp_invariant", "device": "cpu"}
        check_all(setting_from(values), tmp_path)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"gpus": 4}, "gpus=4: must be at most 2, the GPUs there are"),
        (
            {"gpus": 2, "device": "cpu"},
            "gpus=2: must be a divisor of the model's 9 attention heads",
        ),
        ({"gpus": 2, "backend": {"name": "vllm"}}, "gpus=2: must be a divisor of the model's 9"),
        ({"gpus": 2, "device": "cpu", "backend": {"name": "vllm"}}, "gpus=2: must be 1 on a CPU"),
        ({"kernels": "tp_invariant", "backend": {"name": "vllm"}}, "kernels=tp_invariant: must be"),
        ({"dtype": "fp64", "backend": {"name": "sglang"}}, "dtype=fp64: must be one of bf16, fp16"),
    ],
)
def test_the_parent_refuses(
    values: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"num_attention_heads": 9, "num_key_value_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("nondet.plan.gpu_names", lambda: ("NVIDIA H200", "NVIDIA H200"))
    model = {"name": "local", "path": str(tmp_path)}
    with pytest.raises(SettingError) as caught:
        plan_run(setting_from({"model": model, **values}))
    assert str(caught.value).startswith(line)


def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"num_attention_heads": 9}')
    command = ["-m", "nondet.run", "model=local", f"model.path={tmp_path}/model", "gpus=2"]
    done = subprocess.run(
        [sys.executable, *command, "device=cpu"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines() == [
        "nondet: gpus=2: must be a divisor of the model's 9 attention heads (1, 3, 9)"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


DEAF = """
import subprocess, sys
from nondet.parallel import group, team
from nondet.settings import setting_from

def start(job):
    command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

# Whoever waits for the rank, waits for longer than this test.
team._start, team.GRACE_S, team.WAIT_S, group.WAIT_S = start, 0.5, 3600.0, 3600.0
team.Team(setting_from({"gpus": 2}), "nowhere", "cpu")  # waits for a rank that never comes
"""


def test_rank_0_does_not_wait_for_the_dead() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEAF], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == TIMED_OUT, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "rank 1 of 2 ended with 3"


TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-31\t0\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)


def test_topology_is_condensed() -> None:
    assert links_in(TOPOLOGY) == {"GPU0": ["X", "NV18"], "GPU1": ["NV18", "X"]}
    assert links_in("") == {}
