"""Tables with one row a run, a pair of runs, or an item of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nondet.metrics.accuracy import UNKNOWN, accuracy, flips, item_flips, mcnemar
from nondet.metrics.candidates import explained_by_noise
from nondet.metrics.divergence import CUT, FINISHED, Comparison, against, median_position
from nondet.metrics.intervals import share_of_known
from nondet.metrics.load import Gaps, Loaded
from nondet.metrics.prefix import NEVER
from nondet.metrics.probability import Difference
from nondet.metrics.scan import Pair, Scan
from nondet.metrics.survival import CENSORED, DIVERGED, Curve, agreement_curve
from nondet.metrics.survival import FINISHED as ENDED
from nondet.study import Study


def run_labels(study: Study) -> dict[str, str]:
    """A label for every run id: that of its setting, and the repeat where there are several."""
    settings = [repr(study.setting_key(run)) for run in study.runs]
    counts = Counter(settings)
    labels = {}
    for run, setting in zip(study.runs, settings, strict=True):
        several = counts[setting] > 1
        labels[run.id] = study.label(run) + (f", repeat {run.repeat}" if several else "")
    return labels


def summary_table(
    study: Study,
    loaded: Loaded | None,
    first: Comparison | None,
    pairs: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """One row a run, failed ones with empty numbers; ``pairs`` as ``pairs_table`` gives them."""
    place = {run.id: at for at, run in enumerate(study.complete)}
    repeats = _repeats_identical(study, loaded, pairs)
    labels = run_labels(study)
    rows = []
    for run in study.runs:
        row: dict[str, object] = {"run_id": run.id, "label": labels[run.id]}
        row["setting"] = study.label(run)
        row.update({name: run.factors.get(name) for name in study.factors})
        row["repeat"] = run.repeat
        if run.id in place and loaded is not None and first is not None:
            row.update(_run_numbers(loaded, first, place[run.id]))
        row["repeat_identical"] = repeats.get(repr(study.setting_key(run)))
        for name in COSTS:
            row[name] = run.record.get(name)
        row["status"], row["reason"] = run.status, run.record.get("reason")
        rows.append(row)
    columns = ["run_id", "label", "setting", *study.factors, "repeat", *NUMBERS]
    columns += ["repeat_identical", *COSTS]
    return pd.DataFrame(rows, columns=[*columns, "status", "reason"])


# Fields of run.json; runs of older versions and some engines lack a few.
COSTS = (
    *("tokens_per_s", "first_token_s", "weights_mb", "cache_mb"),
    *("peak_memory_mb", "peak_device_memory_mb"),
)

NUMBERS = (
    "items",
    "compared",
    "diverged",
    "div_percent",
    "div_low",
    "div_high",
    "marked",
    "accuracy",
    "acc_low",
    "acc_high",
    "mean_length",
    "truncated",
    "errors",
)


def _run_numbers(loaded: Loaded, first: Comparison, run: int) -> dict[str, object]:
    """Numbers of one run; shares of divergence in percent, accuracy from 0 to 1.

    items: its rows, of which ``compared`` can be told from or are those of the reference and
    ``marked`` have a verdict. mean_length and truncated leave errors out.
    """
    outcome = loaded.outcomes[run]
    # Whether a response that was cut too early differs is not known: it is not among the n.
    decided = first.identical[:, run] | first.diverged[:, run]
    share = share_of_known(first.diverged[:, run], decided, loaded.item_P)
    marked = outcome.correct_P != UNKNOWN
    right = accuracy(outcome.correct_P, len(set(loaded.item_P[marked].tolist())))
    rows = len(outcome.keys)
    ended = outcome.lengths_P[~outcome.error_P]
    return {
        "items": rows,
        "compared": int(decided.sum()),
        "diverged": int(first.diverged[:, run].sum()),
        "div_percent": 100 * share.value,
        "div_low": 100 * share.low,
        "div_high": 100 * share.high,
        "marked": int(marked.sum()),
        "accuracy": right.value,
        "acc_low": right.low,
        "acc_high": right.high,
        "mean_length": float(ended.mean()) if ended.size else np.nan,
        "truncated": int((outcome.cut_P & ~outcome.error_P).sum()),
        "errors": outcome.errors,
    }


def _repeats_identical(
    study: Study, loaded: Loaded | None, pairs: pd.DataFrame | None
) -> dict[str, bool | None]:
    """Whether the repeats of a setting agree in every token and every log-probability that both
    have; None where some of them cannot tell."""
    members: dict[str, list[int]] = {}
    for at, run in enumerate(study.complete):
        members.setdefault(repr(study.setting_key(run)), []).append(at)
    if loaded is None:
        return {}
    said: dict[str, bool | None] = {}
    for key, runs in members.items():
        if len(runs) > 1:
            found = against(loaded.forest, runs[0])
            alike = bool(found.identical[:, runs].all())
            said[key] = False if found.diverged[:, runs].any() else alike or None
    if pairs is not None:
        finer = pairs[(pairs["kind"] == "repeat") & (pairs["logprobs_differ"] > 0)]
        moved = set(finer["run_a"]) | set(finer["run_b"])
        said |= {repr(study.setting_key(run)): False for run in study.complete if run.id in moved}
    return said


def pairs_table(study: Study, loaded: Loaded, scan: Scan) -> pd.DataFrame:
    """One row a pair of complete runs."""
    labels = run_labels(study)
    settings = [repr(study.setting_key(run)) for run in loaded.runs]
    ids = [run.id for run in loaded.runs]
    rows: list[tuple[object, ...]] = []
    for a in range(len(loaded.runs) - 1):
        found = against(loaded.forest, a)
        medians = median_position(found.position)
        # Positions at which the two could have parted, those of the forks included.
        steps = np.where(found.diverged, found.position + 1, found.prefix).sum(axis=0)
        identical, diverged = found.identical.sum(axis=0), found.diverged.sum(axis=0)
        for b in range(a + 1, len(loaded.runs)):
            names = (ids[a], ids[b], labels[ids[a]], labels[ids[b]])
            rate = int(diverged[b]) / max(int(steps[b]), 1)
            counts = (
                len(loaded.item_P),
                int(identical[b]),
                int(diverged[b]),
                float(medians[b]),
                rate,
            )
            difference = scan.pairs.get((a, b), NOT_COMPARED)
            rows.append((*names, *counts, _kind(settings[a], settings[b]), *difference))
    return pd.DataFrame(rows, columns=list(PAIRS))


NOT_COMPARED = Difference(np.nan, np.nan, 0, 0)
PAIRS = (
    "run_a",
    "run_b",
    "label_a",
    "label_b",
    "items",
    "identical",
    "diverged",
    "median_first",
    "flips_per_token",
    "kind",
    "max_abs_dlogprob",
    "mean_abs_dlogprob",
    "logprobs_compared",
    "logprobs_differ",
)


def _kind(setting_a: str, setting_b: str) -> str:
    return "repeat" if setting_a == setting_b else "setting"


def flips_table(study: Study, loaded: Loaded, pairs: Sequence[Pair]) -> pd.DataFrame:
    """Answers that changed between right and wrong, with McNemar's exact p, one row a pair.

    Several samples of an item do not change independently: then p is that of the items that got
    more or fewer right. Answers of responses that ended in an error or that nobody marked are left
    out.
    """
    labels = run_labels(study)
    rows = []
    for a, b in pairs:
        one, two = loaded.outcomes[a], loaded.outcomes[b]
        only_a, only_b, known = flips(one.correct_P, two.correct_P)
        read = one.answered_P & two.answered_P
        rows.append(
            {
                "run_a": loaded.runs[a].id,
                "run_b": loaded.runs[b].id,
                "label_a": labels[loaded.runs[a].id],
                "label_b": labels[loaded.runs[b].id],
                "items": known,
                "only_a": only_a,
                "only_b": only_b,
                "answers_differ": int((read & (one.answers_P != two.answers_P)).sum()),
                "p": mcnemar(*item_flips(one.correct_P, two.correct_P, loaded.item_P)),
            }
        )
    names = ["run_a", "run_b", "label_a", "label_b", "items", "only_a", "only_b"]
    return pd.DataFrame(rows, columns=[*names, "answers_differ", "p"])


def divergence_table(
    loaded: Loaded, labels: dict[str, str], first: Comparison, gaps: Gaps, scan: Scan
) -> pd.DataFrame:
    """One row a run and item, against the reference (the first run, itself left out)."""
    runs, rows = len(loaded.runs) - 1, len(loaded.item_P)

    def flat(array_PC: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(array_PC[:, 1:].T.ravel())

    event = flat(first.diverged)
    reason = np.where(event, -1, np.where(flat(first.cut), 1, 0))
    by_run = np.repeat(np.arange(runs, dtype=np.int64), rows)
    by_row = np.tile(np.arange(rows, dtype=np.int64), runs)
    names = [labels[run.id] for run in loaded.runs[1:]]
    return pd.DataFrame(
        {
            "run_id": _categories(by_run, [run.id for run in loaded.runs[1:]]),
            "label": np.repeat(np.array(names, dtype=object), rows),
            "item": _categories(by_row, list(loaded.outcomes[0].keys)),
            "position": nullable(flat(first.position)),
            "event": event,
            "censor": _categories(reason, [FINISHED, CUT]),
            "common": flat(first.prefix),
            "len_ref": np.tile(loaded.outcomes[0].lengths_P, runs),
            "len_run": flat(loaded.forest.lengths_PC),
            "gap": flat(gaps.reference_PC),
            "gap_logprob": flat(gaps.log_reference_PC),
            "gap_run": flat(gaps.run_PC),
            "gap_run_logprob": flat(gaps.log_run_PC),
            "dlogprob_before": flat(scan.before_PC),
            "dlogprob_largest": flat(scan.largest_PC),
            "explained": explained_by_noise(flat(gaps.log_reference_PC), flat(scan.largest_PC)),
        }
    )


def nullable(position: NDArray[np.int64]) -> pd.Series[int]:
    """Positions as a nullable integer column: null where there is none."""
    return pd.Series(position, dtype="Int64").mask(pd.Series(position == NEVER))


def _categories(codes: NDArray[np.int64], names: list[str]) -> Any:
    return pd.Categorical.from_codes(codes, pd.Index(names))


def survival_table(
    loaded: Loaded,
    labels: dict[str, str],
    first: Comparison,
    rng: np.random.Generator,
    resamples: int,
) -> pd.DataFrame:
    """Kaplan-Meier survival and cumulative incidence against the reference, step by step."""
    status = np.where(first.diverged, DIVERGED, np.where(first.cut, CENSORED, ENDED))
    # Of a response cut before its first token (an error) nothing was compared.
    seen = ~(first.cut & (first.prefix == 0))
    curves = [
        agreement_curve(
            first.time[rows, run], status[rows, run], rng, loaded.item_P[rows], resamples
        )
        for run, rows in ((run, seen[:, run]) for run in range(1, len(loaded.runs)))
    ]
    ids = [run.id for run in loaded.runs[1:]]
    sizes = [len(curve.time) for curve in curves]
    columns: dict[str, Any] = {
        "run_id": np.repeat(np.array(ids, dtype=object), sizes),
        "label": np.repeat(np.array([labels[name] for name in ids], dtype=object), sizes),
    }
    for field in Curve._fields:
        parts = [getattr(curve, field) for curve in curves]
        columns["t" if field == "time" else field] = np.concatenate(parts or [np.empty(0)])
    return pd.DataFrame(columns)
