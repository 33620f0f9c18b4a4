#!/bin/bash
# What the paper and the posts still lack in one go, on two GPUs, or the part that one can do.
#   bash experiments/gpu_rest.sh WORK SMALL MODEL ITEMS [SECONDS]
# For SECONDS (900) many engines at a time, where bits count and seconds do not: the paper's cells
# (first those on one GPU, 7 on each), and the completions on vLLM, and on SGLang if $PYTHON_SGLANG
# is set. Then, alone on a GPU each, the price of invariance on vLLM and on transformers (220 s).
# All of it lies in WORK (cells, completions-*, price-*, said), may be taken home at any time, and
# goes on from there by the same command. PAIRS: engines on both GPUs at a time (6); TOGETHER: on
# each for completions (2); DONE: the cells.json of what is finished.
set -uo pipefail
work=$(realpath -m "$1") small=$(realpath -m "$2") model=$(realpath -m "$3") items=$(realpath -m "$4")
seconds=${5:-900}
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false VLLM_USE_FLASHINFER_SAMPLER=0
python=${PYTHON:-python3}
mkdir -p "$work"
say() { echo "$SECONDS s: $*" | tee -a "$work/said"; }

step() { # NAME LIMIT COMMAND...: with its own log
  local name=$1 limit=$2 began=$SECONDS code
  shift 2
  timeout -k 5 "$limit" "$@" > "$work/$name.log" 2>&1
  code=$?
  say "$name: exit code $code, $((SECONDS - began)) s"
}

posts() { # ENGINE PART LIMIT
  WORK=$work/$2-$1 ENGINE=$1 TOGETHER=${TOGETHER:-2} LIMIT=$3 \
    step "$2-$1" $(($3 + 20)) bash experiments/gpu_posts.sh "$work/$2-$1/out" "$small" "$model" "$2"
}

# Processes side by side on a GPU instead of by turns; nothing of the GPU is set for it.
export CUDA_MPS_PIPE_DIRECTORY=/tmp/nondet-mps CUDA_MPS_LOG_DIRECTORY=/tmp/nondet-mps
mkdir -p /tmp/nondet-mps
if nvidia-cuda-mps-control -d; then say "multi-process service on"; else unset CUDA_MPS_PIPE_DIRECTORY; fi
gpus=$(nvidia-smi -L | wc -l)
say "$gpus GPUs"
alone=()
[[ $gpus -gt 1 ]] || alone=(gpus=1) # the cells on two are left for later
step cells "$seconds" "$python" -m experiments.yuan2025.h200 "$model" "$items" "$work/cells" "${alone[@]}" \
  $((seconds - 20)) 7 "${PAIRS:-6}" "done=${DONE:-results/measured/h200/yuan2025/cells.json}" &
{
  posts vllm completions $((seconds / 2))
  [[ -z ${PYTHON_SGLANG:-} ]] || posts sglang completions $((seconds / 2 - 20))
} &
wait
[[ -z ${CUDA_MPS_PIPE_DIRECTORY:-} ]] || echo quit | nvidia-cuda-mps-control
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
CUDA_VISIBLE_DEVICES=0 posts vllm price 200 &
[[ $gpus -gt 1 ]] || wait
CUDA_VISIBLE_DEVICES=$((gpus > 1)) posts hf price 150 &
wait
say "all done"
