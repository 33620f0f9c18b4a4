#!/usr/bin/env bash
# make venv-sglang: SGLang in .venv-sglang; it needs an NVIDIA GPU to run.
# vLLM and SGLang pin different versions of the same packages and never share an environment.
set -euo pipefail
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-sglang}
"$PYTHON" -m venv "$VENV"
"$(dirname "$0")/../../.ci/install" "$VENV/bin/python" "sglang>=0.5.15,<0.6" pyarrow
"$VENV/bin/python" -c "import importlib.metadata as m; print('SGLang', m.version('sglang'), 'with torch', m.version('torch'), 'in $VENV')"
