"""What happens to the logits of one step in the transformers backend: choose, record, force.

The logits arrive raw, in float32, before temperature or any penalty.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

# Candidates looked at beyond K, so that ties across the K-th place go to the lowest ids.
SPARE = 8


class Record(NamedTuple):
    """What was recorded for B rows over T steps; rows that ended early hold padding after it."""

    tokens: NDArray[np.int32]  # (B, T)
    logprobs: NDArray[np.float32]  # (B, T)
    top_ids: NDArray[np.int32]  # (B, T, K)
    top_logprobs: NDArray[np.float32]  # (B, T, K)


class Recorder:
    """A logits processor for ``generate``: it picks each row's token itself and lets no other pass.

    Greedy: the largest logit, ties to the lowest id. Sampling: the inverse of the cumulative
    distribution at one uniform number a step, drawn from the row's own generator, in float64 on
    the CPU, so that a row's choice depends on its own logits and seed alone.
    """

    def __init__(self, top_k: int, temperature: float, top_p: float, seeds: Sequence[int]) -> None:
        self.top_k, self.temperature, self.top_p = top_k, temperature, top_p
        self.generators = [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]
        self.steps: list[tuple[torch.Tensor, ...]] = []
        self.first: float | None = None  # time.perf_counter() when the first tokens were known

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        logits = scores.float()
        chosen = self._choose(logits)
        width = min(self.top_k + SPARE, logits.shape[-1])
        values, ids = logits.topk(width, dim=-1)
        ids, by_id = ids.sort(dim=-1)
        values, by_value = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, by_value)[:, : self.top_k]
        # log_softmax of the few that are kept: (x - max) - log(sum(exp(x - max))).
        peak = values[:, :1]
        norm = row_sums((logits - peak).exp()).log()
        picked = (logits.gather(-1, chosen[:, None]) - peak) - norm
        top = (values[:, : self.top_k] - peak) - norm
        missing = (0, self.top_k - ids.shape[-1])  # of a vocabulary smaller than K
        ids = torch.nn.functional.pad(ids.int(), missing, value=-1)
        top = torch.nn.functional.pad(top, missing, value=torch.nan)
        self.steps.append((chosen.int(), picked[:, 0], ids, top))
        if self.first is None:
            if logits.is_cuda:
                torch.cuda.synchronize(logits.device)
            self.first = time.perf_counter()
        forced = torch.full_like(scores, -torch.inf)
        return forced.scatter_(-1, chosen[:, None], 0.0)

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        import torch

        if self.temperature == 0:
            return logits.argmax(dim=-1)
        rows = logits.double().cpu().numpy()
        draws = [generator.random() for generator in self.generators]
        picks = [
            sample(row, self.temperature, self.top_p, draw)
            for row, draw in zip(rows, draws, strict=True)
        ]
        return torch.tensor(picks, dtype=torch.int64, device=logits.device)

    def record(self) -> Record:
        """Everything recorded so far, on the host."""
        import torch

        tokens, logprobs, ids, top = (
            torch.stack(column, dim=1).cpu().numpy() for column in zip(*self.steps, strict=True)
        )
        return Record(tokens, logprobs, ids, top)


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """(B, V) -> (B, 1), every row added in an order that B has no part in.

    What is recorded must not differ between batches where the logits do not.
    """
    if not x.is_cuda:
        # A lone row of 32,768 elements or more would be dealt to all threads; one of two is not.
        return x.expand(max(len(x), 2), -1).sum(dim=-1, keepdim=True)[: len(x)]
    return halves_added(x)


def halves_added(x: torch.Tensor) -> torch.Tensor:
    """``row_sums`` by sums of single elements: on a GPU the number of rows decides how torch cuts
    a sum."""
    import torch

    while x.shape[-1] > 1:
        if x.shape[-1] % 2:  # padding by nothing would be a copy
            x = torch.nn.functional.pad(x, (0, 1))
        front, back = x.chunk(2, dim=-1)
        x = front + back
    return x


def sample(logits: NDArray[np.float64], temperature: float, top_p: float, draw: float) -> int:
    """Token id at ``draw`` in [0, 1) of the nucleus distribution of one row of logits (V,).

    The nucleus is the shortest run of candidates, by falling probability and rising id, whose
    probability reaches ``top_p``.
    """
    scaled = (logits - logits.max()) / temperature
    weights = np.exp(scaled)
    order = np.argsort(-weights, kind="stable")
    total = np.cumsum(weights[order])
    keep = int(np.searchsorted(total, top_p * total[-1])) + 1
    place = np.searchsorted(total[:keep], draw * total[min(keep, len(total)) - 1], side="right")
    return int(order[min(int(place), len(order) - 1)])
