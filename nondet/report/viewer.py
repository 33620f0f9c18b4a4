"""The data of the page's fork viewer: responses of some items, cut to a readable window.

Only what the page shows is embedded; a cap keeps a study of thousands of items a small page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from nondet.models import cache_folder, fingerprint
from nondet.runs import Run
from nondet.study import Study

MOST_ITEMS, MOST_RUNS = 60, 12
# Characters of JSON; items beyond it are left out of the page.
MOST_CHARACTERS = 700_000
BEFORE, AFTER = 60, 60
ROWS, BUFFER = 64, 2**20
TEXT_LIMIT = 4000

Decode = Callable[[Sequence[int]], list[str]]


@dataclass(frozen=True)
class Response:
    """One stored response: T tokens, K candidates."""

    tokens: list[int]
    text: str
    finish: str
    outcome: str
    top_ids: list[int]
    top_logprobs: list[float]


def decoder(study: Study) -> Decode | None:
    """Token ids to texts with the model's own tokenizer, or None where it is not at hand.

    Only files on this machine are read; the network is never asked.
    """
    from tokenizers import Tokenizer

    for run in study.complete[:1]:
        for folder in model_folders(run):
            if (folder / "tokenizer.json").is_file():
                tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
                return partial(pieces, tokenizer)
    return None


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text. Some tokenizers drop a space before a lone token, so
    each is decoded after the one before it."""
    found: list[str] = []
    before: list[int] = []
    for token in ids:
        head = tokenizer.decode(before, skip_special_tokens=False) if before else ""
        both = tokenizer.decode([*before, token], skip_special_tokens=False)
        alone = not both.startswith(head)
        text = tokenizer.decode([token], skip_special_tokens=False) if alone else both[len(head) :]
        found.append(text)
        before = [token]
    return found


def model_folders(run: Run) -> list[Path]:
    """Folders on this machine that hold the run's model, by their fingerprint."""
    found: list[Path] = []
    model = (run.record.get("requested") or {}).get("model") or {}
    named = Path(str(model.get("path"))).expanduser() if model.get("path") else None
    candidates = [named] if named is not None and named.is_dir() else []
    candidates += sorted((cache_folder() / "models").glob("[!.]*/"))
    if named is not None and model.get("name") == "hub":
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(
            str(named), "tokenizer.json", revision=model.get("revision")
        )
        candidates += [Path(cached).parent] if isinstance(cached, str) else []
    for folder in candidates:
        if fingerprint(folder) == run.record.get("model_fingerprint"):
            found.append(folder)
    return found


def responses(run: Run, wanted: Sequence[str]) -> dict[str, Response]:
    """The wanted responses of a run by their key: item id, or "item#sample" where items have
    several, as in ``Outcomes``."""
    several = len(set(run.item_ids)) < len(run.item_ids)
    names = [
        "item_id",
        "sample",
        "tokens",
        "text",
        "finish_reason",
        "outcome",
        "top_ids",
        "top_logprobs",
    ]
    # A few rows at a time: a run may hold millions of tokens, and few of them are shown.
    file = pq.ParquetFile(run.folder / "tokens.parquet", buffer_size=BUFFER)
    found: dict[str, Response] = {}
    left = set(wanted)
    for batch in file.iter_batches(ROWS, columns=names):
        keys = zip(*(batch.column(name).to_pylist() for name in names[:2]), strict=True)
        for place, (item_id, sample) in enumerate(keys):
            item = f"{item_id}#{sample}" if several else item_id
            if item not in left:
                continue
            left.remove(item)
            row = batch.slice(place, 1).to_pylist()[0]
            found[item] = Response(
                row["tokens"],
                row["text"] or "",
                row["finish_reason"] or "",
                row["outcome"] or "",
                row["top_ids"] or [],
                row["top_logprobs"] or [],
            )
        if not left:
            break
    return found


def viewer_data(
    study: Study, order: Sequence[str], labels: Sequence[str], decode: Decode | None
) -> dict[str, Any]:
    """What the page embeds.

    order: item ids, the ones worth seeing first. labels: names of the complete runs, in order.
    The result has runs (labels), items (id and one entry a run) and a note on what was left out.
    """
    runs = study.complete[:MOST_RUNS]
    wanted = list(order)[:MOST_ITEMS]
    stored = [responses(run, wanted) for run in runs]
    items: list[dict[str, Any]] = []
    size = 0
    for item in wanted:
        present = [part.get(item) for part in stored]
        entry = {"id": item, "responses": _entries(present, runs, decode)}
        size += len(json.dumps(entry))
        if size > MOST_CHARACTERS and items:
            break
        items.append(entry)
    left = []
    if len(order) > len(items):
        left.append(f"{len(items)} of {len(order):,} items, earliest fork first")
    if len(study.complete) > len(runs):
        left.append(f"the first {len(runs)} of {len(study.complete)} runs")
    note = f"To keep this page small it holds {' and '.join(left)}." if left else ""
    return {"runs": list(labels[: len(runs)]), "items": items, "note": note}


def _entries(
    present: Sequence[Response | None], runs: Sequence[Run], decode: Decode | None
) -> list[dict[str, Any] | None]:
    entries: list[dict[str, Any] | None] = []
    for part, run in zip(present, runs, strict=True):
        if part is None:
            entries.append(None)
            continue
        forks = [
            None if other is None else first_difference(part.tokens, other.tokens)
            for other in present
        ]
        known = sorted({fork for fork in forks if fork is not None})
        entries.append({"forks": forks, **_entry(part, known, run.top_k, decode)})
    return entries


def _entry(
    part: Response, forks: Sequence[int], top_k: int, decode: Decode | None
) -> dict[str, Any]:
    first = forks[0] if forks else 0
    start = max(0, first - BEFORE) if forks else 0
    stop = min(len(part.tokens), max([*forks, 0]) + AFTER)
    stop = min(stop, start + 4 * (BEFORE + AFTER))
    window = part.tokens[start:stop]
    entry: dict[str, Any] = {
        "n": len(part.tokens),
        "finish": part.finish,
        "outcome": part.outcome,
        "from": start,
        "ids": [int(token) for token in window],
        "tops": {
            str(fork): _candidates(part, fork, top_k, decode)
            for fork in forks
            if fork < len(part.tokens)
        },
    }
    if decode is None:
        entry["text"] = part.text[:TEXT_LIMIT]
    else:
        entry["pieces"] = decode(window)
    return entry


def _candidates(
    part: Response, position: int, top_k: int, decode: Decode | None
) -> list[list[Any]]:
    span = slice(position * top_k, (position + 1) * top_k)
    ids, logprobs = part.top_ids[span], part.top_logprobs[span]
    before = part.tokens[position - 1 : position] if position else []
    rows: list[list[Any]] = []
    for token, logprob in zip(ids, logprobs, strict=False):
        if token < 0 or logprob is None or np.isnan(logprob):
            continue
        text = decode([*before, token])[-1] if decode else ""
        # JSON has no infinity: null is a token that was ruled out.
        rows.append([int(token), text, None if np.isinf(logprob) else round(float(logprob), 5)])
    return rows


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """First position, from 0, where two sequences are not the same, or None. Only for marking."""
    for position, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return position
    return None if len(a) == len(b) else min(len(a), len(b))
