#!/usr/bin/env bash
# Everything that wants a GPU, in one command that is made to take nine minutes at most, without network:
#
#   bash benchmarks/gpu_check.sh DATA OUT
#   bash benchmarks/gpu_check.sh DATA OUT row
#
# DATA holds CIFAR-100: a folder with cifar-100-python/, as torchvision downloads it, or the folder
# cifar100/ of WebP mosaics with its unpack.py one level above. OUT takes the JSONs. Runs the tests
# marked gpu, the table of throughputs, graph replay against eager iterations, and the paper's
# 10-split CIFAR-100 row for the rest of the time, with its JSON written after every task; with the
# word "row" that row alone, for all of the time. Without a GPU it does all of this in small on the
# CPU, with digits. With "" for DATA a GPU gets digits, too, and the row in small.
#
# PYTHON names the interpreter (default: that of `make install`, or python3), GPU_CHECK_SECONDS another
# time limit.
set -euo pipefail
data=${1?"usage: bash benchmarks/gpu_check.sh DATA OUT [row]"}
out=${2?"usage: bash benchmarks/gpu_check.sh DATA OUT [row]"}
only=${3:-}
case "$only" in
    "" | row) ;;
    *) echo "Expected \"row\" as the third word, or none, got $only." >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$([ -x "$here/.venv/bin/python" ] && echo "$here/.venv/bin/python" || echo python3)}
seconds=${GPU_CHECK_SECONDS:-520}
mkdir -p "$out"
if [ -n "$data" ]; then data=$(cd "$data" && pwd); fi
out=$(cd "$out" && pwd)
cd "$here"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONWARNINGS=ignore

"$python" - <<'EOF'
import importlib.util
needed = (
    *("avalanche", "torch", "torchvision", "solo", "safetensors", "sklearn"),
    *("pytest", "hypothesis"),
)
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    raise SystemExit(f"Expected {', '.join(missing)} to be installed: see `make install`.")
try:
    import hypothesis
    import pytest
    import benchmarks.training
    from avalanche_dlcpa.self_supervised import make_head
    make_head("mocov2")
except ImportError as error:
    raise SystemExit(f"Expected all of `make install` to be imported, got: {error}") from None
EOF

root=()
if [ -d "$data/cifar-100-python" ]; then
    root=(--dataset-root "$data")
elif [ -n "$data" ] && [ -f "$data/../unpack.py" ] && [ -d "$data/train" ]; then
    unpacked=$(mktemp -d)
    trap 'rm -rf "$unpacked"' EXIT
    "$python" - "$data/.." "$unpacked" <<'EOF'
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import unpack
unpack.unpack_cifar100(pathlib.Path(sys.argv[2]))
EOF
    root=(--dataset-root "$unpacked")
    export PYTHONPATH=$PYTHONPATH:$data/../offline
elif [ -n "$data" ]; then
    echo "Expected DATA to hold cifar-100-python/, or train/ and test/ of WebP mosaics beside" \
        "../unpack.py, got $data." >&2
    exit 2
fi

if "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    device=cuda
    "$python" -c "import torch; print('GPU:', torch.cuda.get_device_name())"
    quick=(--iterations 50 --rounds 3 --widths 64 --layouts channels_last --growth 20)
elif [ -n "${CUDA_VISIBLE_DEVICES-unset}" ] && command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null; then
    echo "Expected torch to see the GPU of nvidia-smi, got torch.cuda.is_available() == False: it is" \
        "a build for CPUs, or the driver is too old for it." >&2
    exit 2
else
    device=cpu
    root=()
    quick=(--quick --precisions float32 --heads mocov2)
fi
# What fails or hangs is reported at the end: the other figures are wanted all the same.
tests=0 times=0 graph=0 row=0
at_most() { timeout --kill-after=5 "$@"; }
if [ -z "$only" ]; then
    # shellcheck disable=SC2046
    at_most $((seconds / 3)) "$python" -m pytest -m gpu -v -p no:cacheprovider \
        $(grep -l "mark\.gpu" tests/test_*.py) || tests=$?
    at_most $((seconds / 3)) "$python" -m benchmarks.throughput "${quick[@]}" "${root[@]}" \
        --device "$device" --threads "$(nproc)" --out "$out/throughput.json" || times=$?
fi
check() { # PART SECONDS
    at_most $(($2 > 0 ? $2 + 10 : 10)) "$python" -m benchmarks.gpu_check "$1" "${root[@]}" --device "$device" \
        --seconds "$2" --since "$(date +%s)" --out "$out"
}
if [ -z "$only" ]; then
    CUBLAS_WORKSPACE_CONFIG=:4096:8 check graph $(((seconds - SECONDS) / 2)) || graph=$?
fi
check row $((seconds - SECONDS)) || row=$?
echo "gpu_check: $SECONDS s on $device, tests ended with $tests, throughput with $times," \
    "graph with $graph, row with $row, results in $out"
exit $((tests || times || graph || row))
