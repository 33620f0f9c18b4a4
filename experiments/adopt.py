"""Take the complete runs of studies made elsewhere into results/.

    python -m experiments.adopt FROM TO        both study folders; runs that are there are kept

Copies run.json and tokens.parquet. The model's folder on the other machine becomes its last part:
which model it was is said by the fingerprint.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

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
        if run_id in known or not (folder / "run.json").exists():
            continue
        text = (folder / "run.json").read_text()
        record = json.loads(text)
        if record["status"] != "complete":
            continue
        path = record["requested"]["model"]["path"]
        if path is not None:
            text = text.replace(path, Path(path).name)
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "run.json", json.loads(text))
        shutil.copyfile(folder / "tokens.parquet", place / "tokens.parquet")
        known.append(run_id)
        copied += 1
    target.mkdir(parents=True, exist_ok=True)
    write_json(listed, {"name": target.name, "seed": 0, "runs": known})
    return copied


if __name__ == "__main__":
    print(f"{adopt(Path(sys.argv[1]), Path(sys.argv[2]))} runs")
