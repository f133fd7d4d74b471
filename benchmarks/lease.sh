#!/usr/bin/env bash
# On a lent GPU machine: unpack what tools/carry.sh took along, let processes share the card, run a command.
#
#   benchmarks/lease.sh python3 -m benchmarks.sweep --minutes 9 --archive "$OUT/runs.tgz" @benchmarks/queues/faz.txt
set -euo pipefail
cd "$(dirname "$0")/.."
unpacked=$(mktemp -d)
for wheel in .carry/*.whl; do
  python3 -m zipfile -e "$wheel" "$unpacked"
done
export PYTHONPATH="$PWD/src:$PWD:$unpacked" CONSILIA_DATA="$PWD/.carry" PYTHONUNBUFFERED=1
if command -v nvidia-cuda-mps-control >/dev/null; then
  export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-25}
  nvidia-cuda-mps-control -d || echo "processes take turns on the card: no MPS" >&2
fi
exec "$@"
