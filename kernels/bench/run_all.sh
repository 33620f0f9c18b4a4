#!/bin/sh
# Everything that needs the GPU, in one go: checks first, then timings. Usage: run_all.sh OUT_FOLDER
cd "$(dirname "$0")" || exit 1
export PYTHONPATH=..:../tests PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
out=$1
now() { date +%s; }
begin=$(now)
mark() { echo "== $1 after $(($(now) - begin)) s"; }
# Checks and compilation share the processors; timings have the GPU to themselves.
(python3 bench_attention.py "$out/none.csv" --warm; python3 bench_rows.py "$out/none.csv" 1 --warm
 python3 bench_matmul.py "$out/none.csv" 1 --warm) >"$out/warm.log" 2>&1 &
python3 check_attention.py "$out/kernels_attention_bits.csv" 2000 "${ATTENTION_SECONDS:-40}" 6 >"$out/attention.log" 2>&1 &
python3 check_bits.py "$out/kernels_bits.csv" 2000 "${BITS_SECONDS:-50}" 8 >"$out/bits.log" 2>&1 &
wait
mark checks
python3 bench_matmul.py "$out/kernels_matmul.csv" "${MATMUL_SECONDS:-36}"
mark matmul
python3 bench_attention.py "$out/kernels_attention.csv" "${SDPA_SECONDS:-20}"
mark attention
python3 bench_rows.py "$out/kernels_rows.csv" "${ROWS_SECONDS:-22}"
mark rows
python3 check_rows.py "$out/kernels_every_m.csv" "${EVERY_SECONDS:-14}"
mark "every M"
