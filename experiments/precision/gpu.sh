#!/bin/sh
# Everything about number formats that needs a GPU. Usage: gpu.sh OUT MODEL_FOLDER [PARTS]
# PARTS: words of kernel, alone (speed, memory, logits: nothing else may run on the GPU) and study;
# each at most ten minutes. OUT gets one precision.tar.gz, made anew after each step, so that
# a call that is ended leaves what there was. The files lie in WORK (/tmp/nondet-precision); the same
# command goes on with the study that lies there.
out=$(realpath -m "$1") model=$(realpath -m "$2")
shift 2
parts=${*:-kernel alone study}
work=$(realpath -m "${WORK:-/tmp/nondet-precision}")
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
mkdir -p "$out" "$work"
began=$(date +%s)
part() { # NAME SECONDS COMMAND...: with its own log; a part that hangs is ended
  name=$1 limit=$2
  shift 2
  timeout -k 5 "$limit" "$@" >"$work/$name.log" 2>&1
  echo "precision: $name: exit code $?, after $(($(date +%s) - began)) s"
  grep -v "Loading" "$work/$name.log" | tail -"${LINES_SHOWN:-40}"
  tar -C "$work" --exclude=probe -czf "$work.tar.gz" . && cp "$work.tar.gz" "$out/precision.tar.gz"
}
for one in $parts; do
  case $one in
  kernel)
    part check_mixed 200 "$python" kernels/bench/check_mixed.py "$work/kernels_mixed_bits.csv" 80
    part bench_mixed 260 "$python" kernels/bench/bench_mixed.py "$work" ${TUNE:---tune}
    if [ -s "$work/kernels_mixed_plans.csv" ]; then # the next part runs with the plans found
      "$python" kernels/bench/mixed_table.py "$work/kernels_mixed_plans.csv" "$work/mixed_hopper.json" &&
        cp "$work/mixed_hopper.json" kernels/nondet_kernels/tables/mixed_hopper.json
      part bench_mixed_again 120 "$python" kernels/bench/bench_mixed.py "$work/again"
    fi
    ;;
  alone)
    part logits 120 "$python" -m experiments.precision.logits "$model" "$work/logits.csv"
    part speed 420 "$python" experiments/precision/speed.py "$model" "$work/speed.csv" ${SPEED:-96 2}
    ;;
  study)
    # Together below ten minutes: what one call on a rented machine may take.
    part study "${STUDY_SECONDS:-500}" "$python" -m experiments.precision.study "$work" "$model" ${STUDY:-64 128 12 1}
    part table 60 "$python" -m experiments.precision.table "$work/study"
    ;;
  *) echo "precision: no part $one" && exit 2 ;;
  esac
done
