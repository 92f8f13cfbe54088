#!/usr/bin/env bash
# Everything that wants a GPU, in one command and within nine minutes, without network:
#
#   bash benchmarks/gpu_check.sh DATA OUT
#
# DATA holds CIFAR-100: a folder with cifar-100-python/, as torchvision downloads it, or the folder
# cifar100/ of WebP mosaics with its unpack.py one level above. OUT takes the JSONs. Runs the tests
# marked gpu, the table of throughputs, graph replay against eager iterations, and the paper's
# 10-split CIFAR-100 row for the rest of the time, with its JSON written after every task. Without a
# GPU it does all of this in small on the CPU, with digits; DATA may then be left out as "".
#
# PYTHON names the interpreter, GPU_CHECK_SECONDS another time limit.
set -euo pipefail
data=${1?"usage: bash benchmarks/gpu_check.sh DATA OUT"}
out=${2?"usage: bash benchmarks/gpu_check.sh DATA OUT"}
python=${PYTHON:-python3}
seconds=${GPU_CHECK_SECONDS:-530}
mkdir -p "$out"
if [ -n "$data" ]; then data=$(cd "$data" && pwd); fi
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore

root=()
if [ -d "$data/cifar-100-python" ]; then
    root=(--dataset-root "$data")
elif [ -n "$data" ] && [ -f "$data/../unpack.py" ] && [ -d "$data/train" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    "$python" "$data/../unpack.py" "$unpacked"
    root=(--dataset-root "$unpacked")
    export PYTHONPATH=$PYTHONPATH:$data/../offline
elif [ -n "$data" ]; then
    echo "Expected DATA to hold cifar-100-python/, or train/ and test/ of WebP mosaics beside" \
        "../unpack.py, got $data." >&2
    exit 2
fi

if "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    device=cuda
    [ "${#root[@]}" -gt 0 ] || { echo "Expected DATA, got nothing: a GPU is here." >&2; exit 2; }
    "$python" -c "import torch; print('GPU:', torch.cuda.get_device_name())"
    quick=(--iterations 50 --rounds 3 --widths 64 --layouts channels_last --growth 20)
else
    device=cpu
    root=()
    quick=(--quick --precisions float32 --heads mocov2)
fi
# Tests that fail are reported at the end: the figures are wanted all the same.
failed=0
# shellcheck disable=SC2046
"$python" -m pytest -m gpu -q -p no:cacheprovider $(grep -l "mark\.gpu" tests/test_*.py) || failed=$?
"$python" -m benchmarks.throughput "${quick[@]}" "${root[@]}" --device "$device" \
    --threads "$(nproc)" --out "$out/throughput.json"
"$python" -m benchmarks.gpu_check "${root[@]}" --device "$device" \
    --seconds $((seconds - SECONDS - 40)) --out "$out"
echo "gpu_check: $SECONDS s on $device, tests ended with $failed, results in $out"
exit "$failed"
