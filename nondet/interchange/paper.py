"""The layout that the code of Yuan et al. (arXiv 2506.09501) writes, one folder a model:

    problem_<i>_<task>_token_ids_bs_<batch>_<dtype>_max_tokens_<n>.pt   int64 (T, 5), by rank
    problem_<i>_<task>_logprobs_bs_<batch>_<dtype>_max_tokens_<n>.pt    float32 (T, 5)
    qa_pairs_<dtype>_bs_<batch>.jsonl   problem_id, question, model_answer; one line a problem

The first rank is the emitted token: decoding was greedy. A folder may hold several settings. GPU
type and count are not in it: give them as factors. Reading needs torch, imported only here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nondet.interchange.base import ForeignResponse, ForeignRun, InterchangeError, read_lines
from nondet.settings import Scalar

RANKS = 5
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
NAME = re.compile(
    r"problem_(?P<problem>\d+)_(?P<task>.+)_token_ids_bs_(?P<batch>\d+)"
    r"_(?P<dtype>[a-z0-9]+)_max_tokens_(?P<limit>\d+)\.pt"
)
# Its LayerCast patch scales the logits by 1.2, so those logprobs belong to another distribution.
SCALED = "LayerCast runs of this code scale the logits by 1.2: their logprobs were left out"


@dataclass(frozen=True, order=True)
class Cell:
    """What the file names say about one setting."""

    task: str
    batch: int
    dtype: str
    limit: int


def read_paper(
    folder: Path, factors: Mapping[str, Scalar] | None = None, layercast: bool = False
) -> Iterator[ForeignRun]:
    """Every setting in a folder as a run. ``layercast``: made with the LayerCast script.

    Raises InterchangeError where tensors or answers are missing or of the wrong shape.
    """
    cells: dict[Cell, dict[int, Path]] = {}
    for path in sorted(folder.glob("problem_*_token_ids_*.pt")):
        match = NAME.fullmatch(path.name)
        if match:
            cell = Cell(match["task"], int(match["batch"]), match["dtype"], int(match["limit"]))
            cells.setdefault(cell, {})[int(match["problem"])] = path
    if not cells:
        raise InterchangeError(f"{folder}: no problem_<i>_..._token_ids_....pt in it")
    for cell, paths in sorted(cells.items()):
        yield _run(folder, cell, paths, dict(factors or {}), layercast)


def _run(
    folder: Path, cell: Cell, paths: Mapping[int, Path], extra: dict[str, Scalar], layercast: bool
) -> ForeignRun:
    answers = _answers(folder / f"qa_pairs_{cell.dtype}_bs_{cell.batch}.jsonl")
    responses = []
    for problem, path in sorted(paths.items()):
        if problem not in answers:
            raise InterchangeError(f"{folder}: problem {problem} has tensors but no answer")
        ids = load_tensor(path)
        other = path.with_name(path.name.replace("_token_ids_", "_logprobs_"))
        logprobs = load_tensor(other)
        if ids.shape != logprobs.shape:
            raise InterchangeError(f"{other}: shape {logprobs.shape}, its ids have {ids.shape}")
        entry = answers[problem]
        responses.append(
            ForeignResponse(
                item_id=f"{cell.task}/{problem}",
                text=str(entry.get("model_answer", "")),
                prompt=entry.get("question"),
                tokens=ids[:, 0].tolist(),
                logprobs=() if layercast else logprobs[:, 0].tolist(),
                top_ids=() if layercast else ids.ravel().tolist(),
                top_logprobs=() if layercast else logprobs.ravel().tolist(),
                finish_reason="length" if len(ids) >= cell.limit else "stop",
            )
        )
    known: dict[str, Scalar] = {
        "batch_size": cell.batch,
        "batching": "wave",
        "dtype": "layercast" if layercast else DTYPES.get(cell.dtype, cell.dtype),
        "max_new_tokens": cell.limit,
        "temperature": 0.0,
        "samples": 1,
    }
    return ForeignRun(
        source=str(folder.name),
        model=_model_name(folder),
        task=cell.task,
        responses=responses,
        factors={"backend": "vllm", **known, **extra},
        top_k=RANKS,
        notes=(SCALED,) if layercast else (),
    )


def _model_name(folder: Path) -> str:
    # outputs/vllm_main/<experiment>/<organisation>/<model>
    parts = folder.resolve().parts
    known = [place for place, part in enumerate(parts) if part.startswith("vllm_")]
    return "/".join(parts[known[-1] + 2 :]) if known else folder.name


def _answers(path: Path) -> dict[int, dict[str, Any]]:
    # A resumed run of that code writes some lines again: the last one belongs to the tensors.
    answers: dict[int, dict[str, Any]] = {}
    for number, entry in read_lines(path):
        if not isinstance(entry.get("problem_id"), int):
            raise InterchangeError(f"{path}, line {number}: no problem_id")
        answers[entry["problem_id"]] = entry
    return answers


def load_tensor(path: Path) -> NDArray[Any]:
    """A stored (T, 5) tensor as an array. Only tensors are unpickled, never code."""
    import torch

    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InterchangeError(f"{path}: no tensor ({first[:120]})") from error
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2 or tensor.shape[1] != RANKS:
        raise InterchangeError(f"{path}: must be a tensor of tokens x {RANKS}")
    array: NDArray[Any] = np.asarray(tensor.numpy())
    return array
