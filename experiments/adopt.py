"""Take the runs of studies made elsewhere into results/.

    python -m experiments.adopt FROM TO        both study folders; complete runs there are kept

Copies run.json and tokens.parquet of complete runs, and run.json of the others: a run that failed
there is a gap with its reason here, and one without a folder is a gap without one. The model's
folder on the other machine becomes its last part: which model it was is said by the fingerprint.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from nondet.runs import write_json


def adopt(source: Path, target: Path) -> int:
    """Copy the complete runs of ``source`` that ``target`` lacks; how many. The order of the
    study is that of ``source``, after what was there."""
    listed = target / "study.json"
    known = json.loads(listed.read_text())["runs"] if listed.exists() else []
    asked = json.loads((source / "study.json").read_text())["runs"]
    copied = 0
    for run_id in asked:
        folder, place = source / "runs" / run_id, target / "runs" / run_id
        if not (folder / "run.json").exists() or _complete(place):
            continue
        record = json.loads((folder / "run.json").read_text())
        path = record["requested"]["model"]["path"]
        place.mkdir(parents=True, exist_ok=True)
        if record["status"] == "complete":
            # Before run.json: what says that it is complete comes last.
            shutil.copyfile(folder / "tokens.parquet", place / "tokens.parquet")
            copied += 1
        write_json(place / "run.json", record if path is None else shortened(record, path))
    target.mkdir(parents=True, exist_ok=True)
    runs = list(dict.fromkeys([*known, *asked]))
    write_json(listed, {"name": target.name, "seed": 0, "runs": runs})
    return copied


def _complete(folder: Path) -> bool:
    path = folder / "run.json"
    return path.exists() and json.loads(path.read_text())["status"] == "complete"


def shortened(value: Any, path: str) -> Any:
    """``value`` (JSON) with a folder as its last part, wherever the whole folder is named."""
    if isinstance(value, dict):
        return {key: shortened(one, path) for key, one in value.items()}
    if isinstance(value, list):
        return [shortened(one, path) for one in value]
    if not isinstance(value, str):
        return value
    name = Path(path).name
    return re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", lambda _: name, value)


if __name__ == "__main__":
    print(f"{adopt(Path(sys.argv[1]), Path(sys.argv[2]))} runs")
