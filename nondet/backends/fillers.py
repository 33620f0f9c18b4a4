"""Needle: one request alone, then at a random place among random fillers.

The neighbours are the treatment: the needle's own prompt, seed and limits stay the same. Fillers
are drawn from a seed that depends on the run's seed and the item alone, so a repeat draws them
again.
"""

from __future__ import annotations

import numpy as np

from nondet.backends.base import Request
from nondet.runs import digest

FILLER = "filler"
SHORTEST, LONGEST = 4, 96


def with_fillers(request: Request, count: int, seed: int) -> tuple[list[Request], int]:
    """The needle among ``count`` fillers, and its place in the list (counted from 0).

    A filler's prompt is 4 to 96 tokens drawn with replacement from the needle's own prompt, so
    that every token id is one the model knows; its length is uniform.
    """
    rng = np.random.default_rng(int(digest([seed, request.item_id, request.seed, count], 12), 16))
    place = int(rng.integers(count + 1))
    wave: list[Request] = []
    for number in range(count):
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        tokens = rng.choice(np.asarray(request.prompt_tokens), size=length)
        own_seed = int(rng.integers(2**31))
        wave.append(Request(f"{FILLER}{number}", tuple(int(t) for t in tokens), "", own_seed))
    wave.insert(place, request)
    return wave, place
