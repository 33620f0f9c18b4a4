"""Start an engine, print what is really in force, and warn of what breaks determinism.

    python -m nondet.doctor backend=vllm
    python -m nondet.doctor backend=vllm kernels=invariant batch_size=32

Exit codes: 0 done (with or without warnings), 1 the engine failed, 2 a mistake in the command.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from nondet.advice import Advice, advise
from nondet.backends.base import Backend, backend_class, checked_backend, known_path
from nondet.environment import child_environment, snapshot
from nondet.settings import Setting, SettingError, setting_from

LOG_LINES = 5
# An engine's own limit (start_timeout_s) comes first; this one is for what it cannot see.
LIMIT_S = 1800.0


class ProbeError(RuntimeError):
    """The engine did not come up; the text ends with its last log lines."""


def compose_setting(words: Sequence[str]) -> Setting:
    """The checked setting that overrides describe, as ``nondet.run`` would compose it."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from nondet.data import data_folder
    from nondet.sweep import STEERING

    try:
        with initialize_config_dir(str(data_folder("configs")), version_base="1.3"):
            config = compose("config", overrides=list(words))
    except HydraException as error:
        raise SettingError(" ".join(words), "", " ".join(str(error).split())) from error
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return setting_from({str(k): v for k, v in values.items() if k not in STEERING})


def probe(setting: Setting, model_path: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Start the engine in its own interpreter and read back its state.

    Returns "observed" and "environment". Raises ProbeError; no process is left behind.
    """
    cls = backend_class(setting.backend.name)
    python = known_path(setting.backend.python)
    if python is not None and not python.is_file():
        valid = f"an interpreter; `make venv-{setting.backend.name}` makes it"
        raise SettingError("backend.python", python, valid)
    job = {
        "setting": setting.to_dict(),
        "backend_class": f"{cls.__module__}:{cls.__qualname__}",
        "model_path": model_path,
    }
    with tempfile.TemporaryDirectory(prefix="nondet-doctor-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        code = _run_probe(str(python or sys.executable), folder, cls.environment(setting), limit_s)
        answer = folder / "answer.json"
        if not answer.exists():
            lines = (folder / "log").read_text(errors="replace").strip().splitlines()
            words = "took too long" if code is None else f"ended with {code}"
            raise ProbeError(f"the engine {words}; log: " + " | ".join(lines[-LOG_LINES:]))
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def _run_probe(
    python: str, folder: Path, variables: Mapping[str, str], limit_s: float
) -> int | None:
    command = [python, "-m", "nondet.doctor", "--probe", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=child_environment(dict(variables)),
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def probe_here(folder: Path) -> int:
    """The child's half of ``probe``: writes answer.json."""
    job = json.loads((folder / "job.json").read_text())
    module, name = job["backend_class"].split(":")
    cls: type[Backend] = getattr(import_module(module), name)
    backend = cls(setting_from(job["setting"]), job["model_path"])
    try:
        backend.start()
        answer = {"observed": backend.observed(), "environment": snapshot(cls.packages())}
        text = json.dumps(answer, default=str)
    finally:
        backend.close()
    (folder / "answer.json").write_text(text)
    return 0


def show(found: Mapping[str, Any], advice: Sequence[Advice]) -> str:
    """The doctor's page: the state, then the warnings."""
    lines = ["In force"]
    lines += _lines(found["observed"], 1)
    environment = found["environment"]
    versions = environment.get("versions") or {}
    named = ", ".join(f"{k} {v}" for k, v in versions.items() if v)
    machine = ", ".join([str(environment.get("cpu")), *(environment.get("gpus") or [])])
    lines += ["", f"Versions: {named}", f"Machine: {machine}"]
    lines += ["", f"{len(advice)} warnings" if advice else "No warnings"]
    for number, one in enumerate(advice, 1):
        lines.append(f"{number}. {one}")
    return "\n".join(lines)


def _lines(values: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for number, part in enumerate(value):
                lines += ["  " * depth + f"{key} {number}", *_lines(part, depth + 1)]
        elif isinstance(value, dict) and value:
            lines += ["  " * depth + key, *_lines(value, depth + 1)]
        else:
            lines.append("  " * depth + f"{key}: {json.dumps(value, default=str)}")
    return lines


def main(words: Sequence[str]) -> int:
    """Entry point."""
    if words[:1] == ["--probe"]:
        return probe_here(Path(words[1]))
    from nondet.models import find_model

    try:
        setting = compose_setting(words)
        checked_backend(setting)
        model = find_model(setting.model)
        found = probe(setting, str(model.path))
    except SettingError as error:
        print(f"nondet: {error}", file=sys.stderr)
        return 2
    except ProbeError as error:
        print(f"nondet: {error}", file=sys.stderr)
        return 1
    print(show(found, advise(setting, found["observed"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
