"""Waves: which requests go through the engine together.

As in Yuan et al. (arXiv 2506.09501, section 3): prompts in task order, in synchronous waves of
``batch_size``; the next wave starts when the slowest of the last has finished.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# With continuous batching the engine's own scheduler holds batch_size requests at a time; it is
# handed this many times as many, so that it rarely runs dry and a kill loses little.
CONTINUOUS_SHARE = 16


def plan_waves(
    lengths: Sequence[int], batch_size: int, batching: str, padding: str, seed: int = 0
) -> list[list[int]]:
    """Positions of the requests in each wave; every request is in exactly one.

    lengths: prompt tokens of each request. With ``padding`` "none" a wave holds only prompts of
    one length, in task order, so waves can be short. With ``batching`` "varied" the size of each
    wave is uniform in 1 .. batch_size, drawn from ``seed``: the load of a server, in process.
    """
    if batching == "continuous":
        return _cut(range(len(lengths)), batch_size * CONTINUOUS_SHARE)
    rng = np.random.default_rng(seed) if batching == "varied" else None
    if padding != "none":
        return _cut(range(len(lengths)), batch_size, rng)
    by_length: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        by_length.setdefault(length, []).append(position)
    waves = [wave for group in by_length.values() for wave in _cut(group, batch_size, rng)]
    return sorted(waves)


def _cut(
    positions: Sequence[int], size: int, rng: np.random.Generator | None = None
) -> list[list[int]]:
    waves, start = [], 0
    while start < len(positions):
        step = size if rng is None else int(rng.integers(1, size + 1))
        waves.append(list(positions[start : start + step]))
        start += step
    return waves
