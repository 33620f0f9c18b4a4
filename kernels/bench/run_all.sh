#!/bin/sh
# Everything that needs the GPU, in one go: checks first, then timings. Ten minutes on 32 cores.
# Checks that the clock ends are carried on where the same command is given again: their rows lie in
# OUT_FOLDER/*.rows.jsonl.
# Usage: run_all.sh OUT_FOLDER [MODEL_FOLDER]; with a model its activations are among the inputs.
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH=.:kernels:kernels/bench:kernels/tests:tests PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
out=$1 model=$2 bench=kernels/bench
mkdir -p "$out"
begin=$(date +%s)
mark() { echo "== $1 after $(($(date +%s) - begin)) s"; }
if [ -n "$model" ]; then
    python3 $bench/capture_activations.py "$model" "$out/activations.pt" && export ACTIVATIONS="$out/activations.pt"
fi
# Checks and compilation share the processors; timings have the GPU to themselves.
(python3 $bench/bench_attention.py "$out/none.csv" --warm
 python3 $bench/bench_rows.py "$out/none.csv" 1 --warm
 python3 $bench/bench_matmul.py "$out/none.csv" 1 --warm) >"$out/warm.log" 2>&1 &
python3 $bench/check_attention.py "$out/kernels_attention_bits.csv" --draws 2000 --seconds "${ATTENTION_SECONDS:-200}" --processes 8 >"$out/attention.log" 2>&1 &
python3 $bench/check_bits.py "$out/kernels_bits.csv" --draws 2000 --seconds "${BITS_SECONDS:-200}" --processes 14 >"$out/bits.log" 2>&1 &
python3 $bench/check_rows.py "$out/kernels_every_m.csv" --seconds "${EVERY_SECONDS:-200}" --processes 4 >"$out/every_m.log" 2>&1 &
python3 -m pytest -q -m gpu kernels/tests tests/test_invariant_gpu.py >"$out/pytest.log" 2>&1 &
wait
tail -n 2 "$out/attention.log" "$out/bits.log" "$out/every_m.log" "$out/pytest.log"
mark checks
python3 $bench/bench_matmul.py "$out/kernels_matmul.csv" "${MATMUL_SECONDS:-36}"
mark matmul
python3 $bench/bench_attention.py "$out/kernels_attention.csv" "${SDPA_SECONDS:-20}"
mark attention
python3 $bench/bench_rows.py "$out/kernels_rows.csv" "${ROWS_SECONDS:-22}"
mark rows
if [ -n "$model" ]; then
    python3 $bench/bench_model.py "$model" "$out" 60
    mark model
fi
