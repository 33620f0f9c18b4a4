"""FlashAttention's decode by itself: from how many keys on does a row follow its batch?

    python experiments/engines/attention_split.py OUT.json

One query with its keys and values, alone and as row 0 of a batch of equal length, through the
paged kernel that vLLM calls; outputs compared bit by bit at every length. ``num_splits`` is the
most parts the kernel may cut a row's keys into: 0 leaves it to the kernel, 32 is what vLLM asks
for under CUDA graphs, 1 is what its invariant mode asks for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func

PAGE = 16
LENGTHS = (*range(1, 700), *range(704, 4097, 64))
BATCHES = (8, 32, 64)
# heads, key heads, head size: SmolLM2-135M, Qwen2.5-1.5B, Llama-3.1-8B
SHAPES = ((9, 3, 64), (12, 2, 128), (32, 8, 128))


def decode(
    query: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, length: int, splits: int
) -> torch.Tensor:
    """Outputs (batch, heads, size) of one decode step over ``length`` keys each."""
    batch = len(query)
    starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
    return flash_attn_varlen_func(
        q=query,
        k=cache[0],
        v=cache[1],
        max_seqlen_q=1,
        cu_seqlens_q=starts,
        max_seqlen_k=length,
        seqused_k=torch.full((batch,), length, dtype=torch.int32, device="cuda"),
        causal=True,
        block_table=table[:batch],
        fa_version=3,
        num_splits=splits,
    )


def lengths_that_differ(shape: tuple[int, int, int], batch: int, splits: int) -> list[int]:
    """Lengths at which row 0 of a batch is not the row alone."""
    heads, key_heads, size = shape
    torch.manual_seed(0)
    pages = -(-max(LENGTHS) // PAGE)
    query = torch.randn(batch, heads, size, device="cuda", dtype=torch.bfloat16)
    cache = torch.randn(2, batch * pages, PAGE, key_heads, size, device="cuda").bfloat16()
    table = torch.arange(batch * pages, dtype=torch.int32, device="cuda").view(batch, pages)
    found = []
    for length in LENGTHS:
        alone = decode(query[:1], cache, table, length, splits)[0]
        again = decode(query[:1], cache, table, length, splits)[0]
        assert torch.equal(alone.view(torch.int16), again.view(torch.int16)), "does not repeat"
        beside = decode(query, cache, table, length, splits)[0]
        if not torch.equal(alone.view(torch.int16), beside.view(torch.int16)):
            found.append(length)
    return found


def main(words: list[str]) -> None:
    """All shapes, batches and limits; written as they come."""
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        for splits in (0, 32, 1):
            for batch in BATCHES:
                found = lengths_that_differ(shape, batch, splits)
                row = {
                    "heads": shape[0],
                    "key_heads": shape[1],
                    "head_size": shape[2],
                    "num_splits": splits,
                    "batch": batch,
                    "lengths": len(LENGTHS),
                    "differ": len(found),
                    "first": found[0] if found else None,
                    "later_equal": sum(n > found[0] for n in LENGTHS) - len(found[1:])
                    if found
                    else None,
                }
                rows.append(row)
                print(row, flush=True)
                Path(words[0]).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
