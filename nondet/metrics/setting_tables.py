"""Tables with one row a group of settings (all, a slice of a factor, the repeats of one)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nondet.metrics.accuracy import UNKNOWN, best_worst, binomial_se, std_at_acc
from nondet.metrics.agreement import answers_agree
from nondet.metrics.attribution import REPEAT, one_factor_pairs
from nondet.metrics.divergence import against, decided, div_index, unique_outputs
from nondet.metrics.groups import Group
from nondet.metrics.intervals import (
    Estimate,
    by_item,
    mean_over_items,
    share_of_known,
)
from nondet.metrics.length import avg_std_output_length
from nondet.metrics.load import Loaded
from nondet.metrics.prefix import NEVER
from nondet.metrics.run_tables import nullable
from nondet.metrics.scan import Scan
from nondet.study import Study

HEAD = ["group", "kind", "factor", "level", "settings", "items"]
ESTIMATE = ["value", "low", "high", "n"]


def _head(group: Group, items: int) -> dict[str, object]:
    return {
        "group": group.name,
        "kind": group.kind,
        "factor": group.factor,
        "level": group.value,
        "settings": len(group.runs),
        "items": items,
    }


def accuracy_table(loaded: Loaded, groups: Sequence[Group]) -> pd.DataFrame:
    """Std@Acc with its yardstick; accuracies from 0 to 1."""
    rows = []
    for group in groups:
        correct = loaded.correct_CP[list(group.runs)]
        known = (correct != UNKNOWN).all(axis=0)
        counts = correct[:, known].sum(axis=1, dtype=np.int64)
        items = int(known.sum())
        shares = counts / items if items else np.full(len(counts), np.nan)
        rows.append(
            {
                **_head(group, items),
                **std_at_acc(correct, item_P=loaded.item_P)._asdict(),
                "mean": float(shares.mean()),
                "median": float(np.median(shares)),
                "min": float(shares.min()),
                "max": float(shares.max()),
                "range": int(counts.max() - counts.min()) / items if items else np.nan,
                "binomial_se": binomial_se(float(shares.mean()), items),
            }
        )
    names = ["mean", "median", "min", "max", "range", "binomial_se"]
    return pd.DataFrame(rows, columns=[*HEAD, *ESTIMATE, *names])


def length_table(loaded: Loaded, groups: Sequence[Group], rng: np.random.Generator) -> pd.DataFrame:
    """Avg_Std@Output_Length in tokens, and the share of responses that were cut at the limit.

    Items with an error in one of the settings are left out.
    """
    rows = []
    for group in groups:
        runs = list(group.runs)
        # An error has no length of its own.
        ended = ~loaded.error_CP[runs].any(axis=0)
        lengths_CP = loaded.forest.lengths_PC[ended][:, runs].T
        spread = avg_std_output_length(lengths_CP, loaded.item_P[ended], rng)
        cut = loaded.forest.cut_PC[ended][:, runs]
        rows.append(
            {
                **_head(group, int(ended.sum())),
                **spread._asdict(),
                "truncated_share": float(cut.mean()) if cut.size else np.nan,
                "mean_length": float(lengths_CP.mean()) if cut.size else np.nan,
            }
        )
    return pd.DataFrame(rows, columns=[*HEAD, *ESTIMATE, "truncated_share", "mean_length"])


def div_index_table(
    loaded: Loaded, groups: Sequence[Group], rng: np.random.Generator
) -> pd.DataFrame:
    """Div_Index over all settings of a group: share diverged (value, 0 to 1) and positions.

    items: rows of which is known whether they diverge, or that are equal. mean and median are over
    the diverged items only; ``paper_value`` is the published
    convention: that mean, or -1 when nothing diverged.
    """
    rows = []
    for group in groups:
        position = div_index(loaded.forest, group.runs)
        some = position != NEVER
        unique = unique_outputs(loaded.forest, group.runs)
        known = decided(position, unique)
        share = share_of_known(some, known, loaded.item_P)
        conditional = np.where(some, position, np.nan).astype(np.float64)
        mean = mean_over_items(by_item(conditional, loaded.item_P), rng)
        rows.append(
            {
                **_head(group, int(known.sum())),
                **share._asdict(),
                "diverged": int(some.sum()),
                "median": float(np.median(position[some])) if some.any() else np.nan,
                "mean": mean.value,
                "mean_low": mean.low,
                "mean_high": mean.high,
                "paper_value": float(position[some].mean()) if some.any() else -1.0,
                "unique_outputs": float(unique[known].mean()) if known.any() else np.nan,
            }
        )
    names = ["diverged", "median", "mean", "mean_low", "mean_high", "paper_value"]
    return pd.DataFrame(rows, columns=[*HEAD, *ESTIMATE, *names, "unique_outputs"])


def div_index_items(loaded: Loaded, groups: Sequence[Group]) -> pd.DataFrame:
    """Div_Index of every item, one column a group; null where the settings never part."""
    columns: dict[str, object] = {"item": list(loaded.outcomes[0].keys)}
    for group in groups:
        columns[group.name] = nullable(div_index(loaded.forest, group.runs))
    return pd.DataFrame(columns)


def top1_table(
    loaded: Loaded, groups: Sequence[Group], scan: Scan, rng: np.random.Generator
) -> pd.DataFrame:
    """Avg_Std@top1_prob: mean over positions before Div_Index, then over items.

    ``pooled`` is the mean over all positions at once; ``global_prefix`` uses only positions that
    all settings share, so that slices of one study can be compared with each other.
    """
    rows = []
    for group in groups:
        found = scan.top1[group.name]
        count = int(found.count_P.sum())
        rows.append(
            {
                **_head(group, len(loaded.item_P)),
                **mean_over_items(by_item(found.mean_P, loaded.item_P), rng)._asdict(),
                "pooled": float(found.total_P.sum()) / count if count else np.nan,
                "positions": count,
                "global_prefix": _mean(found.global_P),
            }
        )
    return pd.DataFrame(rows, columns=[*HEAD, *ESTIMATE, "pooled", "positions", "global_prefix"])


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def answers_table(loaded: Loaded, groups: Sequence[Group]) -> pd.DataFrame:
    """TARr@N, TARa@N, best and worst possible accuracy, one row a group and metric.

    items: rows that enter: TARr@N leaves errors out, TARa@N rows that nobody marked, the accuracies
    rows without a verdict in every setting.
    """
    rows = []
    for group in groups:
        runs = list(group.runs)
        best, worst = best_worst(loaded.correct_CP[runs], loaded.item_P)
        marked = np.asarray((loaded.correct_CP[runs] != UNKNOWN).all(axis=0), dtype=bool)
        ended = np.asarray(~loaded.error_CP[runs].any(axis=0), dtype=bool)
        read = np.asarray(loaded.answered_CP[runs].all(axis=0), dtype=bool)
        same = unique_outputs(loaded.forest, runs) == 1
        agree = answers_agree(loaded.answers_CP[runs])
        metrics: dict[str, tuple[Estimate, NDArray[np.bool_]]] = {
            "TARr@N": (share_of_known(same, ended, loaded.item_P), ended),
            "TARa@N": (share_of_known(agree, read, loaded.item_P), read),
            "best_accuracy": (best, marked),
            "worst_accuracy": (worst, marked),
        }
        for name, (estimate, known) in metrics.items():
            head = _head(group, int(known.sum()))
            rows.append({**head, "metric": name, **estimate._asdict()})
    return pd.DataFrame(rows, columns=[*HEAD, "metric", *ESTIMATE])


def attribution_table(study: Study, loaded: Loaded, rng: np.random.Generator) -> pd.DataFrame:
    """Share of items identical when only one factor changes; the row "repeat" is the control."""
    pairs = one_factor_pairs([run.factors for run in loaded.runs], study.factors)
    rows = []
    for name, found in pairs.items():
        total, known = np.zeros((2, len(loaded.item_P)))
        partners: dict[int, list[int]] = defaultdict(list)
        for a, b in found:
            partners[a].append(b)
        for a, others in partners.items():
            one = against(loaded.forest, a)
            total += one.identical[:, others].sum(axis=1)
            known += (one.identical | one.diverged)[:, others].sum(axis=1)
        # NaN where every comparison was cut too early to tell.
        share = np.divide(total, known, out=np.full(len(total), np.nan), where=known > 0)
        estimate = mean_over_items(by_item(share, loaded.item_P), rng)
        some = share[known > 0]
        if estimate.n and np.all(some == some[0]) and some[0] in (0, 1):
            estimate = share_of_known(share == 1, known > 0, loaded.item_P)
        kind = "control" if name == REPEAT else "factor"
        rows.append({"factor": name, "kind": kind, "pairs": len(found), **estimate._asdict()})
    return pd.DataFrame(rows, columns=["factor", "kind", "pairs", *ESTIMATE])
