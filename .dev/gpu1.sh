#!/bin/bash
# On the GPU machine, from the root of the checkout: bash .dev/gpu1.sh ; results go to $OUT.
export PYTHONPATH=$PWD/src:$PWD/tests:/root/site
unset CUBLAS_WORKSPACE_CONFIG
OUT=${OUT:-/tmp/out}; mkdir -p "$OUT"
timeout 200 python -m pytest -q -p no:cacheprovider tests/cuda/test_captured_runs.py --durations=12 --maxfail=15 \
  > "$OUT/tests.txt" 2>&1
echo "tests ended with $?" | tee -a "$OUT/tests.txt"
tail -c 5000 "$OUT/tests.txt"
timeout 240 python scripts/benchmark_grow.py --rows gpu --repeats 3 --out "$OUT/benchmark.json" \
  > "$OUT/benchmark.txt" 2>&1
echo "benchmark ended with $?" | tee -a "$OUT/benchmark.txt"
tail -c 4000 "$OUT/benchmark.txt"
