"""Pass@1 and the unbiased pass@k of several samples an item (Chen et al. 2021, equation 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(n: int, right: int, k: int) -> float:
    """Chance that at least one of k samples, drawn from n without putting back, is right.

    1 - C(n - right, k) / C(n, k), from whole numbers, so that it is exact up to one rounding.
    Raises ValueError unless 0 <= right <= n and 1 <= k <= n.
    """
    if not 0 <= right <= n or not 1 <= k <= n:
        raise ValueError(f"n={n}, right={right}, k={k}: needs 0 <= right <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def mean_pass_at_k(
    item_ids: Sequence[str], correct: Sequence[int | None], k: int = 1
) -> tuple[float | None, int, int]:
    """Mean over items of pass@k, the number of items in it, and the number left out.

    item_ids, correct: one entry a response; 1, 0, or None where the marker failed, which is
    unknown and not counted as a sample. Items with fewer than k known samples are left out. The
    mean is None when no item is left. With k = 1 it is the paper's Pass@1: the mean over items of
    the share of right samples.
    """
    counts: dict[str, list[int]] = {}
    for item, value in zip(item_ids, correct, strict=True):
        known = counts.setdefault(item, [0, 0])
        if value is not None:
            known[0] += 1
            known[1] += value
    values = [pass_at_k(n, right, k) for n, right in counts.values() if n >= k]
    mean = math.fsum(values) / len(values) if values else None
    return mean, len(values), len(counts) - len(values)
