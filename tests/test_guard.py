"""The folder kernels/ must never hide, or be hidden by, the Hugging Face package of that name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORTS = (
    "import importlib.util, transformers\n"
    "from transformers import LlamaConfig, LlamaForCausalLM\n"
    "LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1,\n"
    "    num_attention_heads=1, vocab_size=8))\n"
    "spec = importlib.util.find_spec('kernels')\n"
    "print('regular' if spec and spec.origin else 'namespace' if spec else 'none')\n"
)


def run(path: Path | None) -> str:
    """Import transformers and a model class from the project root; returns the last line."""
    variables = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    variables["PYTHONPATH"] = str(path) if path else ""
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, env=variables,
                          capture_output=True, text=True, timeout=1800, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


def fake_package(folder: Path, version: str) -> Path:
    """A package that looks like Hugging Face's: importable, with metadata."""
    package = folder / "kernels"
    package.mkdir()
    # Any name can be imported from it, as transformers asks for a changing set of them.
    (package / "__init__.py").write_text(
        "def __getattr__(name):\n"
        "    if name.startswith('__'):\n        raise AttributeError(name)\n"
        "    return type(name, (), {'__init__': lambda self, *a, **k: None})\n"
    )
    info = folder / f"kernels-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")
    return folder


def test_no_package_named_kernels_in_the_project() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()
    # ... and none among the packages that are shipped under their own name.
    assert (ROOT / "kernels" / "nondet_kernels" / "__init__.py").is_file()


def test_transformers_imports_from_the_project_root() -> None:
    assert run(None) in ("namespace", "none", "regular")


def test_transformers_imports_with_a_package_kernels(tmp_path: Path) -> None:
    # Out of the range transformers accepts, as SGLang pins it.
    assert run(fake_package(tmp_path, "0.14.1")) == "regular"
