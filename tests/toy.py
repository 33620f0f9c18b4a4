"""Running studies of the toy backend in child processes, as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "tests" / "plugin"


def environment() -> dict[str, str]:
    """The tests' environment with the plugin found."""
    paths = [str(PLUGIN), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def write_items(path: Path, count: int) -> Path:
    """A JSONL task of ``count`` items."""
    rows = [{"id": f"i{n:03d}", "prompt": f"p{n}", "answer": str(n)} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(folder: Path, *words: str, backend: str = "toy") -> list[str]:
    """The command line of a study with the task in ``folder``."""
    fixed = ["model=endpoint", "model.path=toy", "task=jsonl", f"task.path={folder}/items.jsonl"]
    if backend == "toy":
        fixed += ["backend=toy"]
    configs = f"hydra.searchpath=[file://{PLUGIN}/configs]"
    return [sys.executable, "-m", "nondet.run", configs, *fixed, *words]


def run(folder: Path, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
    """Run a study to its end in ``folder``."""
    return subprocess.run(
        command(folder, *words, **options),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,  # forty runs on a busy machine
    )


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a study and return at once; its output goes to a file, so nobody waits for it."""
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            command(folder, *words), cwd=folder, env=environment(), stdout=log, stderr=log
        )
