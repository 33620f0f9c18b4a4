"""The workload: the same prompts on every day."""

from __future__ import annotations

import shutil
from pathlib import Path

from nondet.workload import encode_here

TEMPLATE = "{{ strftime_now('%d %b %Y %f') }}|{{ messages[0]['content'] }}"


def test_a_chat_template_that_writes_the_date_writes_a_fixed_one(
    tiny: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    (tokens,) = encode_here(tmp_path, ["hello"])
    assert AutoTokenizer.from_pretrained(tmp_path).decode(tokens) == "01 Jan 2025 000000|hello"
