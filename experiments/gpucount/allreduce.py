"""Does an element of an all_reduce depend on how long the message is, and which algorithm ran?

    PYTHONPATH=. python experiments/gpucount/allreduce.py OUT.json [RANKS] [WIDTH]

The first row of a bf16 message is the same in every length; its sums are compared bit by bit with
those of a message of one row. With two ranks there is one addition and nothing can differ. On GPUs
NCCL's own log says which algorithm and protocol it chose for which size.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS = (1, 2, 8, 32, 128, 512, 2048, 4096)


def rank_main(rank: int, size: int, width: int, folder: str) -> None:
    """One rank; rank 0 writes what it found."""
    cuda = torch.cuda.device_count() >= size
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=size)
    draw = torch.Generator().manual_seed(rank)
    whole = torch.randn(ROWS[-1], width, generator=draw).to(torch.bfloat16)
    found: dict[str, Any] = {"process_group": dist.get_backend(), "ranks": size, "width": width}
    alone: torch.Tensor | None = None
    for rows in ROWS:
        message = whole[:rows].to(device)
        dist.all_reduce(message)
        first = message[0].view(torch.int16).cpu()
        alone = first if alone is None else alone
        found[f"{rows} rows"] = {
            "bytes": message.numel() * message.element_size(),
            "elements that differ": int((first != alone).sum()),
        }
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))


def main(out: Path, size: int, width: int) -> None:
    """Start the ranks, then add what NCCL logged."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=f"{folder}/nccl.%p"
        )
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        mp.spawn(rank_main, (size, width, folder), nprocs=size)
        found = json.loads(Path(folder, "found.json").read_text())
        logs = "".join(log.read_text(errors="replace") for log in Path(folder).glob("nccl.*"))
        lines = [re.sub(r"^.*NCCL INFO ", "", line) for line in logs.splitlines()]
        found["nccl_log"] = list(dict.fromkeys(line for line in lines if "Bytes" in line))
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[2:4]] + [2, 1536][len(sys.argv[2:4]) :]
    main(Path(sys.argv[1]), *sizes)
