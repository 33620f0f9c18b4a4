"""What machine, versions and switches a run had: its identity (light) and its snapshot (full)."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import nondet
from nondet.runs import digest

# Environment variables that move bits or choose kernels; recorded with every run.
SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_",
    "CUDA_MPS_",
    "CUDA_VISIBLE_DEVICES",
    "CUDNN_",
    "DISABLE_ADDMM_CUDA_LT",
    "DNNL_",
    "FLASHINFER_",
    "FLASH_ATTENTION_",
    "GOMP_",
    "KMP_",
    "LD_PRELOAD",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "SGLANG_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRANSFORMERS_SDPA_FORCE_GQA",
    "TRITON_",
    "USE_HUB_KERNELS",
    "VLLM_",
)
# Of these, what only says where files lie, what is logged, or which GPUs there are.
IDLE = re.compile(
    r"(_CACHE|_DIR|_DIRECTORY|_HOME|_PATH|_ROOT|_LOGS?)$|_CACHE_(DIR|ROOT|PATH)|_LOG(GING)?_|_LOGS_"
    r"|DEBUG|VERBOSE|USAGE_STATS|CUDA_VISIBLE_DEVICES"
)
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
# Sources whose change can change generated tokens; part of a run's identity.
GENERATING = ("worker.py", "waves.py", "serve.py", "backends", "invariant", "parallel", "precision")


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Installed versions of distributions in this interpreter; None where one is missing."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


@functools.cache
def versions_in(python: str | None, packages: tuple[str, ...]) -> dict[str, str | None]:
    """``versions`` as another interpreter sees them. Raises OSError if it cannot be started."""
    if python is None:
        return versions(packages)
    command = [python, "-m", "nondet.environment", *packages]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=child_environment({})
    )
    if done.returncode:
        raise OSError(f"{python} does not start: {done.stderr.strip()[-200:]}")
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def child_environment(extra: dict[str, str]) -> dict[str, str]:
    """Environment of a child process that finds this nondet, whatever its interpreter."""
    root = str(Path(nondet.__file__).parent.parent)
    kernels = str(Path(root) / "kernels")
    paths = [root, *([kernels] if Path(kernels).is_dir() else [])]
    inherited = os.environ.get("PYTHONPATH")
    joined = os.pathsep.join([*paths, *([inherited] if inherited else [])])
    # transformers must not swap in kernels from the Hub behind our back.
    return {"USE_HUB_KERNELS": "NO", **os.environ, **extra, "PYTHONPATH": joined}


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs this process may use, in order; empty where there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return ()
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    names = tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
    if done.returncode:
        return ()
    if visible is None:
        return names
    chosen = [word.strip() for word in visible.split(",")]
    if all(word.isdigit() and int(word) < len(names) for word in chosen):
        return tuple(names[int(word)] for word in chosen)
    return names[: len(chosen)]  # by UUID: of a mixed machine the names may be wrong


@functools.cache
def cpu_name() -> str:
    """The processor's model name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def code_hash() -> str:
    """Hash of our sources that take part in generation."""
    package = Path(nondet.__file__).parent
    roots = [package / name for name in GENERATING]
    roots += [package.parent / "kernels" / "nondet_kernels", package.parent / "nondet_kernels"]
    files = sorted(
        file
        for root in roots
        for file in ([root] if root.is_file() else root.rglob("*.py") if root.is_dir() else [])
    )
    return digest([[f.name, hashlib.sha256(f.read_bytes()).hexdigest()] for f in files])


def snapshot(packages: Sequence[str]) -> dict[str, Any]:
    """Everything about this process that may matter later; JSON values, no secrets."""
    distributions = sorted(
        f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()
    )
    return {
        "nondet": nondet.__version__,
        "code": code_hash(),
        "git": git_state(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpus": cpu_count(),
        "gpus": list(gpu_names()),
        "versions": versions(packages),
        "packages": len(distributions),
        "packages_hash": digest(distributions),
        "switches": switches(),
        "torch": _torch_state(),
    }


def switches() -> dict[str, str]:
    """Environment variables of the listed kinds that are set."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(SWITCHES) and not any(word in name for word in SECRET)
    }


def inherited_switches(replaced: Collection[str]) -> dict[str, str]:
    """Switches that a worker inherits and that may move bits; part of a run's identity.

    replaced: variables whose value does not reach the worker's computation.
    """
    return {
        name: value
        for name, value in switches().items()
        if name not in replaced and not IDLE.search(name)
    }


def git_state() -> dict[str, str] | None:
    """Commit of the checkout nondet runs from and a hash of its uncommitted diff, or None."""
    folder = Path(nondet.__file__).parent.parent
    if not (folder / ".git").exists():
        return None
    state = {}
    for name, words in (("commit", ["rev-parse", "HEAD"]), ("diff", ["diff", "HEAD"])):
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
        if done.returncode:
            return None
        state[name] = done.stdout.decode(errors="replace").strip()
    state["diff"] = digest(state["diff"]) if state["diff"] else ""
    return state


def _torch_state() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    state: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "config": torch.__config__.show(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
    }
    if torch.cuda.is_available():
        state["device"] = torch.cuda.get_device_name()
        state["capability"] = list(torch.cuda.get_device_capability())
        state["cudnn"] = torch.backends.cudnn.version()
        state["driver"] = _driver()
        version = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
        state["nccl"] = ".".join(str(part) for part in version) or None
        if torch.cuda.device_count() > 1:
            state["topology"] = topology()
    return state


def topology() -> dict[str, list[str]]:
    """How each GPU is connected to each, as ``nvidia-smi topo -m`` says; empty if it does not."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return links_in(done.stdout)


def links_in(matrix: str) -> dict[str, list[str]]:
    """Rows of the GPUs in ``nvidia-smi topo -m``: name -> its link to each GPU (X: itself)."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    return {row[0]: row[1 : len(rows) + 1] for row in rows}


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.stdout.strip() else None


if __name__ == "__main__":
    print(json.dumps(versions(sys.argv[1:])))
