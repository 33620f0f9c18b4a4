#!/bin/bash
# The experiments after the posts on one GPU: floating_point, tml2025, batch_size.
#   bash experiments/gpu_posts.sh OUT SMALL_MODEL LARGE_MODEL [PARTS]
# PARTS: words of "study" (everything whose bits count, many processes at a time), "price" (seconds,
# alone on the machine) and "large" (the completions of LARGE_MODEL); all three when left out.
# Everything lands in OUT/posts-PART.tar.gz; a part that fails leaves its reason in OUT/posts.log.
# Parts that hang are ended after LIMIT seconds (300).
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1") small=$2 large=$3
shift 3
parts=${*:-study price large}
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
python=${PYTHON:-python3}
work=${WORK:-/tmp/nondet-posts}
mkdir -p "$out" "$work"

part() { # NAME COMMAND...: run, with its own log and the seconds it took
  local name=$1 began=$SECONDS code
  shift
  timeout -k 5 ${LIMIT:-300} "$@" > "$work/$name.log" 2>&1
  code=$?
  echo "posts: $name: exit code $code, $((SECONDS - began)) s"
  grep -aE "^(floating_point|price|hf|vllm|sglang|batch_size)|Error|FAILED" "$work/$name.log" | tail -${LINES_SHOWN:-60}
}

{
  if [[ " $parts " == *" study "* ]]; then
    part floating_point "$python" -m experiments.floating_point.run "$work/floating_point" --device ${DEVICE:-cuda} &
    part batch_size "$python" -m experiments.batch_size.study "$work/batch_size" "$small" ${BATCH_SIZE:-48 48 8 8} &
    part tml2025 "$python" -m experiments.tml2025.study "$work/tml2025" "$small" ${SCALE:-gpu} ${ENGINE:-hf} ${TOGETHER:-6} &
    wait
    "$python" -m experiments.tml2025.completions "$work/tml2025/table" "$work"/tml2025/{alone,sizes,load,sampled}
    "$python" -m experiments.batch_size.causes "$work/batch_size/table" "$work/batch_size"
  fi
  if [[ " $parts " == *" price "* ]]; then
    part price "$python" -m experiments.tml2025.price "$work/price/price.csv" ${ENGINE:-hf} "$large" ${PRICE:-256 128 100 4}
  fi
  if [[ " $parts " == *" large "* ]]; then
    part large "$python" -m experiments.tml2025.study "$work/large" "$large" ${SCALE:-gpu} ${ENGINE:-hf} ${TOGETHER:-6}
    "$python" -m experiments.tml2025.completions "$work/large/table" "$work"/large/{alone,sizes,load,sampled}
  fi
  echo "posts: all in $SECONDS s"
} 2>&1 | tee "$out/posts.log"
cd "$work"
tar -czf "$out/posts-study.tar.gz" $(ls -d floating_point batch_size tml2025 price ./*.log 2> /dev/null)
[[ -d large ]] && tar -czf "$out/posts-large.tar.gz" large
ls -l "$out"
