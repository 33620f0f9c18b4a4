"""python -m nondet.localise: which operation lets the batch into a prompt's answer.

    python -m nondet.localise --model PATH --batch-size 4 --dtype bf16

Exit codes: 0 identical, 1 an operation was located, 2 usage, 3 inconclusive.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

CODES = {"identical": 0, "located": 1, "inherited": 3, "unmatched": 3}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison that the command line asks for; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 0 <= options.row < options.batch_size:
        parser.error(f"row={options.row}: must be 0 to {options.batch_size - 1}")
    import torch
    import transformers

    from nondet.invariant import invariant_kernels
    from nondet.invariant.localise import localise

    torch.set_num_threads(options.threads or torch.get_num_threads())
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, DTYPES[options.dtype]), local_files_only=True
    )
    model = model.to(options.device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    prompt = tokenizer(options.prompt)["input_ids"]
    draw = torch.Generator().manual_seed(options.seed)
    others = [[prompt[i] for i in torch.randperm(len(prompt), generator=draw)]
              for _ in range(options.batch_size - 1)]  # fmt: skip
    scope = invariant_kernels(model) if options.kernels == "invariant" else nullcontext()
    with scope:
        finding = localise(model, prompt, others, row=options.row, steps=options.steps)
    print(finding)
    return CODES[finding.status]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nondet.localise", description=__doc__)
    parser.add_argument("--model", required=True, help="a model folder")
    parser.add_argument("--prompt", default="Explain step by step: what is 17 * 23 + 5?")
    parser.add_argument("--batch-size", type=_at_least_two, default=4,
                        help="neighbours are the prompt's own tokens in other orders")  # fmt: skip
    parser.add_argument("--row", type=int, default=0, help="zero-based place of the prompt")
    parser.add_argument("--steps", type=int, default=8, help="decode steps after the prompt")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--kernels", choices=("default", "invariant"), default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"batch-size={text}: must be a whole number of at least 2")
    return value


if __name__ == "__main__":
    sys.exit(main())
