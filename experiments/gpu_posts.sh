#!/bin/bash
# The experiments after the posts on one GPU: floating_point, tml2025, batch_size.
#   bash experiments/gpu_posts.sh OUT SMALL_MODEL LARGE_MODEL [PARTS]
# PARTS: words of float, batch, completions (many processes at a time; bits count, not seconds),
# price (seconds, alone on the machine) and large (the completions of LARGE_MODEL); all when left
# out. Variables: ENGINE, PYTHON_VLLM, PYTHON_SGLANG, TOGETHER, BATCH_SIZE, PRICE, GRAPHS, WORK.
# Everything lands in OUT/posts.tar.gz and OUT/posts-large.tar.gz, made anew after each step, so that
# a call that is ended leaves what there was; a part that fails leaves its reason in OUT/posts.log.
# Parts that hang are ended after LIMIT seconds (300). Studies go on in WORK by the same command.
set -uo pipefail
out=$(realpath -m "$1") small=$2 large=$3
shift 3
# A folder as seen from here; an empty word stays the default model.
[[ -n $small ]] && small=$(realpath -m "$small")
[[ -n $large ]] && large=$(realpath -m "$large")
work=$(realpath -m "${WORK:-/tmp/nondet-posts}")
cd "$(dirname "$0")/.." || exit 1
parts=${*:-float batch completions price large}
engine=${ENGINE:-hf}
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
python=${PYTHON:-python3}
mkdir -p "$out" "$work"

part() { # NAME COMMAND...: run, with its own log and the seconds it took
  local name=$1 began=$SECONDS code
  shift
  timeout -k 5 ${LIMIT:-300} "$@" > "$work/$name.log" 2>&1
  code=$?
  echo "posts: $name: exit code $code, $((SECONDS - began)) s"
  grep -aE "^(floating_point|price|hf|vllm|sglang|batch_size)|Error|FAILED" "$work/$name.log" | tail -${LINES_SHOWN:-60}
}

has() { [[ " $parts " == *" $1 "* ]]; }

keep() { # what there is so far
  local found
  found=$(cd "$work" && ls -d floating_point batch_size tml2025 price ./*.log 2> /dev/null)
  tar -C "$work" -czf "$work.tar.gz" $found && cp "$work.tar.gz" "$out/posts.tar.gz"
  [[ ! -d $work/large ]] || { tar -C "$work" -czf "$work.tar.gz" large && cp "$work.tar.gz" "$out/posts-large.tar.gz"; }
}

completions() { # FOLDER MODEL
  part "$1" "$python" -m experiments.tml2025.study "$work/$1" "$2" ${SCALE:-gpu} "$engine" ${TOGETHER:-10}
  "$python" -m experiments.tml2025.completions "$work/$1/table" "$work/$1"/{alone,sizes,load,sampled}
}

{
  if has float; then
    part floating_point "$python" -m experiments.floating_point.run "$work/floating_point" --device ${DEVICE:-cuda} &
  fi
  if has batch; then
    part batch_size "$python" -m experiments.batch_size.study "$work/batch_size" "$small" ${BATCH_SIZE:-48 48 8 8} ${CONTEXT:+"$CONTEXT"} &
  fi
  if has completions; then completions tml2025 "$small" & fi
  wait
  if has batch; then "$python" -m experiments.batch_size.causes "$work/batch_size/table" "$work/batch_size"; fi
  keep
  if has price; then
    part price "$python" -m experiments.tml2025.price "$work/price/price.csv" "$engine" "$large" ${PRICE:-256 128 100 4}
    if [[ -n ${GRAPHS:-} ]]; then
      part price_graphs "$python" -m experiments.tml2025.price "$work/price/price.csv" "$engine" "$large" \
        ${PRICE:-256 128 100 4} "$GRAPHS"
    fi
    keep
  fi
  if has large; then
    completions large "$large"
    keep
  fi
  echo "posts: all in $SECONDS s"
} 2>&1 | tee "$out/posts.log"
ls -l "$out"
