"""Agreement of responses and answers over settings (Atil et al., arXiv 2408.04667).

TARr@N: share of items whose N responses are identical (here: same tokens, ``unique_outputs``).
TARa@N: share whose N answers agree, right or wrong. "No answer" is a class of its own: N responses
without an answer agree with each other, but not with a response that has one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def answers_agree(answers_CP: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Whether all settings gave the same answer (or none did), bool (P,)."""
    return np.asarray((answers_CP == answers_CP[:1]).all(axis=0), dtype=bool)
