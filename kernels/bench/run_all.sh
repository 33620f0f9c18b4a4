#!/bin/sh
# Everything that needs the GPU: checks first, then timings. Ten minutes on 32 cores.
# Usage: run_all.sh OUT [MODEL_FOLDER [PARTS]]; with a model its activations are among the inputs.
# PARTS: words of checks, times and model; all when left out ("" for no model).
# OUT gets one kernels.tar.gz, made anew after each step, so that a call that is ended leaves what
# there was. The files lie in WORK (/tmp/nondet-kernels); the same command carries on from there what
# the clock ended (*.rows.jsonl), also where an earlier kernels.tar.gz was unpacked into it.
# What PYTHONPATH held stays on it: vLLM there is timed beside ours, with more seconds.
out=$(realpath -m "$1") model=${2:+$(realpath -m "$2")}
[ $# -gt 2 ] && shift 2 || shift $#
cd "$(dirname "$0")/../.." || exit 1
parts=${*:-checks times ${model:+model}} bench=kernels/bench
export PYTHONPATH=.:kernels:$bench:kernels/tests:tests${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
work=$(realpath -m "${WORK:-/tmp/nondet-kernels}")
mkdir -p "$out" "$work"
begin=$(date +%s)
keep() {
    tar -C "$work" --exclude=activations.pt -czf "$work.tar.gz" . && cp "$work.tar.gz" "$out/kernels.tar.gz"
}
mark() {
    echo "== $1 after $(($(date +%s) - begin)) s"
    keep
}
has() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac }
warm() { # compile ahead what the timings need; the first import of vLLM takes a minute or two
    timeout -k 5 200 python3 -c "import peers; print('vLLM', peers.version() or 'is not here', peers.flash())"
    for one in attention rows matmul; do timeout -k 5 300 python3 $bench/bench_$one.py "$work/none.csv" 1 --warm; done
}
if has checks && [ -n "$model" ]; then
    python3 $bench/capture_activations.py "$model" "$work/activations.pt" && export ACTIVATIONS="$work/activations.pt"
fi
if has checks; then
    # Checks and compilation share the processors; timings have the GPU to themselves.
    warm >"$work/warm.log" 2>&1 &
    python3 $bench/check_attention.py "$work/kernels_attention_bits.csv" --draws 2000 --seconds "${ATTENTION_SECONDS:-200}" --processes 8 >"$work/attention.log" 2>&1 &
    python3 $bench/check_bits.py "$work/kernels_bits.csv" --draws 2000 --seconds "${BITS_SECONDS:-200}" --processes 14 >"$work/bits.log" 2>&1 &
    python3 $bench/check_rows.py "$work/kernels_every_m.csv" --seconds "${EVERY_SECONDS:-200}" --processes 4 >"$work/every_m.log" 2>&1 &
    # Interrupted, pytest still says what it found.
    timeout -s INT -k 20 "${PYTEST_SECONDS:-300}" python3 -m pytest -q -m gpu kernels/tests tests/test_invariant_gpu.py >"$work/pytest.log" 2>&1 &
    wait
    for log in attention bits every_m pytest; do echo "-- $log" && tail -n 3 "$work/$log.log"; done
    mark checks
fi
if has times; then
    has checks || { warm >"$work/warm.log" 2>&1 && mark warm; }
    grep "^vLLM" "$work/warm.log"
    slow=1
    grep -q "^vLLM [0-9]" "$work/warm.log" && slow=3
    python3 $bench/bench_matmul.py "$work/kernels_matmul.csv" "${MATMUL_SECONDS:-$((36 * slow))}"
    mark matmul
    python3 $bench/bench_attention.py "$work/kernels_attention.csv" "${SDPA_SECONDS:-$((20 * slow))}"
    mark attention
    python3 $bench/bench_rows.py "$work/kernels_rows.csv" "${ROWS_SECONDS:-$((22 * slow))}"
    mark rows
fi
if has model && [ -n "$model" ]; then
    timeout -k 5 240 python3 $bench/bench_model.py "$model" "$work" 60
    mark model
fi
