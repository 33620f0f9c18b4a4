#!/bin/sh
# Everything about number formats that needs a GPU. Usage: gpu.sh OUT MODEL_FOLDER [PARTS]
# PARTS: words of kernel, alone (speed, memory, logits: nothing else may run on the GPU) and study.
out=$(realpath -m "$1") model=$(realpath -m "$2")
shift 2
parts=${*:-kernel alone study}
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH=.:kernels PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
work=$(realpath -m "${WORK:-/tmp/nondet-precision}")
mkdir -p "$out" "$work"
began=$(date +%s)
part() { # NAME SECONDS COMMAND...: with its own log; a part that hangs is ended
  name=$1 limit=$2
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  echo "precision: $name: exit code $?, after $(($(date +%s) - began)) s"
  grep -v "Loading" "$out/$name.log" | tail -"${LINES_SHOWN:-40}"
}
for one in $parts; do
  case $one in
  kernel)
    part check_mixed 120 "$python" kernels/bench/check_mixed.py "$out/kernels_mixed_bits.csv" 80
    part bench_mixed 150 "$python" kernels/bench/bench_mixed.py "$out" ${TUNE:---tune}
    if [ -s "$out/kernels_mixed_plans.csv" ]; then # the next part runs with the plans found
      "$python" kernels/bench/mixed_table.py "$out/kernels_mixed_plans.csv" "$out/mixed_hopper.json" &&
        cp "$out/mixed_hopper.json" kernels/nondet_kernels/tables/mixed_hopper.json
      part bench_mixed_again 100 "$python" kernels/bench/bench_mixed.py "$out/again"
    fi
    ;;
  alone)
    part logits 120 "$python" -m experiments.precision.logits "$model" "$out/logits.csv"
    part speed 240 "$python" experiments/precision/speed.py "$model" "$out/speed.csv" ${SPEED:-96 2}
    ;;
  study)
    part study 580 "$python" -m experiments.precision.study "$work" "$model" ${STUDY:-64 128 12 1}
    part table 60 "$python" -m experiments.precision.table "$work/study"
    tar -C "$work" -czf "$out/study.tar.gz" study
    ;;
  esac
done
