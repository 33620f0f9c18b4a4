"""The workload of a run: its prompts as token ids, made once and the same for every setting.

Tokenising needs transformers, which loads torch; it happens in a child process, so that the
parent of a study stays small, and the result is kept in the user's cache.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nondet.backends.base import Request
from nondet.models import ModelFiles, cache_folder, context_length
from nondet.runs import digest, prompt_hash, write_json
from nondet.settings import Setting, SettingError
from nondet.tasks.base import Task

# Changes when the same prompts would be encoded otherwise.
ENCODING = 1
# What chat templates that write the date are told: the same prompts today and tomorrow.
TODAY = (2025, 1, 1)


@dataclass(frozen=True)
class Workload:
    """Requests in task order (each item ``samples`` times) and what identifies them."""

    requests: tuple[Request, ...]
    samples: tuple[int, ...]
    hashes: tuple[str, ...]
    fingerprint: str

    def to_dict(self) -> dict[str, object]:
        """JSON form, read back by the worker."""
        rows = [
            [r.item_id, sample, hashed, r.seed, r.prompt, list(r.prompt_tokens)]
            for r, sample, hashed in zip(self.requests, self.samples, self.hashes, strict=True)
        ]
        return {"fingerprint": self.fingerprint, "rows": rows}


def workload_from(data: dict[str, object]) -> Workload:
    """The inverse of ``Workload.to_dict``."""
    rows = data["rows"]
    assert isinstance(rows, list)
    return Workload(
        tuple(Request(row[0], tuple(row[5]), row[4], row[3]) for row in rows),
        tuple(row[1] for row in rows),
        tuple(row[2] for row in rows),
        str(data["fingerprint"]),
    )


def make_workload(setting: Setting, task: Task, model: ModelFiles) -> Workload:
    """Encode the prompts of a task for a model. Raises SettingError for a prompt that is empty
    or, together with the new tokens, longer than the model's context."""
    prompts = [item.prompt for item in task.items]
    if setting.model.name == "endpoint":
        encoded: list[list[int]] = [[] for _ in prompts]
        hashes = [digest(prompt) for prompt in prompts]
    else:
        encoded = encode(model, prompts)
        hashes = [prompt_hash(tokens) for tokens in encoded]
        _check_length(setting, task, encoded, context_length(model.path))
    requests, samples, repeated = [], [], []
    for item, tokens, hashed in zip(task.items, encoded, hashes, strict=True):
        for sample in range(setting.samples):
            seed = item_seed(setting.seed, item.id, sample)
            requests.append(Request(item.id, tuple(tokens), item.prompt, seed))
            samples.append(sample)
            repeated.append(hashed)
    ids = [item.id for item in task.items]
    fingerprint = digest([ENCODING, ids, hashes])
    return Workload(tuple(requests), tuple(samples), tuple(repeated), fingerprint)


def item_seed(seed: int, item_id: str, sample: int) -> int:
    """The seed of one response: a hash, so that it depends on no other item and no order."""
    return int(digest([seed, item_id, sample], 8), 16) >> 1


def _check_length(
    setting: Setting, task: Task, encoded: Sequence[Sequence[int]], limit: int | None
) -> None:
    for item, tokens in zip(task.items, encoded, strict=True):
        if not tokens:
            raise SettingError("task.items", item.id, "a prompt of at least one token")
        if limit is not None and len(tokens) + setting.max_new_tokens > limit:
            need = f"{len(tokens)} prompt tokens and {setting.max_new_tokens} new ones"
            valid = f"within the model's context of {limit} tokens, not {need}"
            raise SettingError("task.items", item.id, valid)


def encode(model: ModelFiles, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each prompt as one user turn, with the model's chat template if it has one."""
    key = digest([ENCODING, TODAY, model.fingerprint, list(prompts)])
    kept = cache_folder() / "prompts" / f"{key}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(list(prompts), file)
            file.flush()
            command = [sys.executable, "-m", "nondet.workload", str(model.path), file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            valid = f"a model with a tokenizer transformers can load ({last[0]})"
            raise SettingError("model.path", model.path, valid)
        write_json(kept, json.loads(done.stdout.splitlines()[-1]))
    encoded: list[list[int]] = json.loads(kept.read_text())
    return encoded


def encode_here(folder: Path, prompts: Sequence[str]) -> list[list[int]]:
    """The work of ``encode`` in this process. Loads transformers."""
    with _fixed_date():
        return _encode(folder, prompts)


@contextmanager
def _fixed_date() -> Iterator[None]:
    """Within it, the clock of transformers' chat templates stands still."""
    from transformers.utils import chat_template_utils

    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls(*TODAY, tzinfo=tz)

    templates: Any = chat_template_utils
    own, templates.datetime = templates.datetime, Fixed
    try:
        yield
    finally:
        templates.datetime = own


def _encode(folder: Path, prompts: Sequence[str]) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template is None:
        return [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    encoded = []
    for prompt in prompts:
        turns = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        # The template writes the special tokens itself.
        encoded.append(list(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return encoded


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[2]).read_text())
    print(json.dumps(encode_here(Path(sys.argv[1]), asked)))
