"""Decode steps of a transformers model as CUDA graphs (backend.cuda_graph, with a static cache).

A step of a small model is over before the host has started the next of its thousand kernels; a
graph starts them all at once. The first step after a prefill runs as always and warms up, the
second is captured, and it and the following ones are replayed. A static cache keeps its length in
a tensor, so a replayed step writes where it should. Arguments may be nested: models with several
kinds of layers are given a dictionary of masks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Record the kernels of ``call`` in a CUDA graph; the result replays them."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()

    def replay() -> Any:
        graph.replay()
        return output

    return replay


class DecodeGraphs:
    """Stands in for ``model.forward`` until ``undo``; one graph at a time, dropped after its wave.

    What it returns is overwritten by the next step; ``generate`` copies the logits out of it.
    """

    def __init__(
        self, model: Any, capture: Callable[[Callable[[], Any]], Callable[[], Any]] = captured
    ) -> None:
        self.model, self.capture = model, capture
        self.inner: Callable[..., Any] = model.forward
        self.key: Any = None
        self.inputs: list[Tensor] = []
        self.replay: Callable[[], Any] | None = None
        self.replays = 0

        # generate looks at the signature of forward.
        @functools.wraps(self.inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._forward(*args, **kwargs)

        model.forward = forward

    def undo(self) -> None:
        """Give the model its own forward back and drop the graph."""
        del self.model.forward
        self.forget()

    def forget(self) -> None:
        """Drop the graph, as after a wave: its cache is freed, and the next may get its address."""
        self.replay, self.inputs, self.key = None, [], None

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if args or ids is None or ids.shape[1] != 1 or cache is None:
            self.forget()
            return self.inner(*args, **kwargs)
        leaves, spec = tree_flatten(kwargs)
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        # What is no tensor is fixed in a graph; an object such as the cache is known by itself.
        fixed = [leaf if isinstance(leaf, int | float | str) else id(leaf)
                 for leaf in leaves if not isinstance(leaf, Tensor)]  # fmt: skip
        key = (spec, fixed, [(leaves[at].shape, leaves[at].dtype) for at in places])
        if key != self.key:
            self.key, self.replay = key, None
            return self.inner(**kwargs)
        if self.replay is None:
            self.inputs = [leaves[at].clone() for at in places]
            held = list(leaves)
            for at, mine in zip(places, self.inputs, strict=True):
                held[at] = mine
            self.replay = self.capture(lambda: self.inner(**tree_unflatten(held, spec)))
        for at, mine in zip(places, self.inputs, strict=True):
            mine.copy_(leaves[at])
        self.replays += 1
        return self.replay()
