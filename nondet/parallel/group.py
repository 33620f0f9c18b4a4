"""The ranks of a run, as one of them sees them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from nondet.backends.base import Request
from nondet.backends.recorder import Recorder

# Longest that a rank waits for another in one exchange, seconds: compiling kernels takes a while.
WAIT_S = 300.0


class Group:
    """One rank alone; its exchanges change nothing."""

    rank = 0
    size = 1
    # How partial sums are added, in words; known once a model is cut.
    reduction = ""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def add(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over ranks by the process group's all_reduce, in the type of ``x``."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """``x`` of every rank, in the order of the ranks: (size, *x.shape)."""
        return x[None]

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.gather(torch.zeros(1, device=self.device))

    def agree(self, *values: Tensor) -> None:
        """Raise RuntimeError unless every rank has the same bits."""

    def checks(self, recorder: Recorder) -> list[Agreement]:
        """Logits processors that come after the recorder."""
        return []

    @contextmanager
    def wave(self, wave: Sequence[Request]) -> Iterator[None]:
        """Around one wave: rank 0 hands it to the others, and says why if one of them fails."""
        yield

    def observed(self) -> dict[str, Any]:
        """What exchanges really run, for the record of a run."""
        return {"reduction": self.reduction} if self.reduction else {}

    def close(self) -> None:
        """Leave the group; rank 0 ends the others."""


class Ranks(Group):
    """A rank among others: NCCL between GPUs, gloo between processes on a CPU."""

    def __init__(self, rank: int, size: int, store: Any, device: torch.device) -> None:
        """store: a torch.distributed store that all ranks reach. Blocks until all are there."""
        import torch.distributed as dist

        super().__init__(device)
        self.rank, self.size = rank, size
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            # Loopback: a machine's name may not resolve, and all ranks are on this machine.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=WAIT_S),
            device_id=device if device.type == "cuda" else None,
        )

    def add(self, x: Tensor) -> Tensor:
        torch.distributed.all_reduce(x)
        return x

    def gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty(self.size, *x.shape)
        dist: Any = torch.distributed
        # Renamed in torch 2.13.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gather(parts.view(-1), x.contiguous().view(-1))
        return parts

    def agree(self, *values: Tensor) -> None:
        bits = torch.stack([v.to(self.device).view(torch.int32).flatten() for v in values])
        parts = self.gather(bits)
        if not bool((parts == parts[0]).all()):
            apart = [r for r in range(self.size) if not torch.equal(parts[r], parts[0])]
            raise RuntimeError(f"ranks {apart} have other tokens or log-probabilities than rank 0")

    def checks(self, recorder: Recorder) -> list[Agreement]:
        return [Agreement(self, recorder)]

    def observed(self) -> dict[str, Any]:
        kind = torch.distributed.get_backend()
        kinds = [device_of(self.device.type, rank, self.size) for rank in range(self.size)]
        found = {**super().observed(), "ranks": self.size, "process_group": kind}
        found["devices"] = [str(device) for device in kinds]
        if kind == "nccl":
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            found["nccl"] = ".".join(str(part) for part in version)
            for name in ("NCCL_ALGO", "NCCL_PROTO"):
                found[name] = os.environ.get(name, "NCCL's choice")
        return found

    def close(self) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


class Agreement:
    """A logits processor after the recorder: the token of every row, and its log-probability, must
    be the same on every rank; ranks that part would wait for each other for ever."""

    def __init__(self, group: Group, recorder: Recorder) -> None:
        self.group, self.recorder = group, recorder

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen, logprobs = self.recorder.steps[-1][:2]
        self.group.agree(chosen, logprobs)
        return scores


def device_of(kind: str, rank: int, size: int) -> torch.device:
    """The device of a rank: its own GPU, or the CPU. A rank alone takes the current GPU."""
    return torch.device(kind, rank) if kind == "cuda" and size > 1 else torch.device(kind)
