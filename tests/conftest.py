"""Shared fixtures: a tiny random Llama with a byte tokenizer, made in a second, no network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# Tests are small: one thread each keeps them quick and off each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def make_tiny_llama(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random Llama whose 259 tokens are the bytes, an end, a start and a padding token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": "<end>", "bos_token": "<start>", "pad_token": "<pad>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        eos_token_id=fast.eos_token_id,
        bos_token_id=fast.bos_token_id,
        pad_token_id=fast.pad_token_id,
        **{**TINY, **changes},
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny model."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL task of eight prompts of different lengths."""
    path = tmp_path_factory.mktemp("task") / "prompts.jsonl"
    words = ["a", "bc", "def", "ghij", "klmno", "pqrstu", "vwxyz01", "23456789"]
    rows = [{"id": f"item-{n}", "prompt": word, "answer": str(n)} for n, word in enumerate(words)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep converted prompts and hashes out of the user's cache."""
    if "NONDET_CACHE" not in os.environ:
        monkeypatch.setenv("NONDET_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
