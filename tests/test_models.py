"""Model folders made from GGUF files: the same content wherever they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nondet.models import _smollm2_file, find_model, fingerprint, forget_offline
from nondet.settings import ModelSetting

WRITTEN_ONLINE = '{\n  "eos_token": "é",\n  "is_local": true,\n  "local_files_only": false\n}\n'


def test_a_configuration_written_offline_becomes_the_one_written_online(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(WRITTEN_ONLINE.replace("false", "true"), "utf-8")
    forget_offline(path)
    assert path.read_text("utf-8") == WRITTEN_ONLINE


def test_any_other_configuration_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    for text in (WRITTEN_ONLINE, json.dumps({"b": 1, "a": 2})):
        path.write_text(text, "utf-8")
        forget_offline(path)
        assert path.read_text("utf-8") == text


@pytest.mark.slow
def test_a_model_unpacked_offline_has_the_same_fingerprint(tmp_path: Path) -> None:
    usual = find_model(ModelSetting("smollm2", None)).fingerprint
    command = [sys.executable, "-m", "nondet.models", str(_smollm2_file()), str(tmp_path / "off")]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=offline, check=True, capture_output=True)
    written = json.loads((tmp_path / "off" / "tokenizer_config.json").read_text("utf-8"))
    assert written["local_files_only"] is False
    assert fingerprint(tmp_path / "off") == usual
