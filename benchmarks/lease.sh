#!/usr/bin/env bash
# On a lent GPU machine: unpack what tools/carry.sh took along, then run a command.
#
#   benchmarks/lease.sh python3 -m benchmarks.gpu --out "$OUT/gpu.json"
#   MPS=1 benchmarks/lease.sh python3 -m benchmarks.sweep --minutes 8 --archive "$OUT/runs.txz" @benchmarks/queues/faz.txt
#
# MPS=1 lets processes share the card, each at most a quarter of it: for many small runs side by side, never for timing.
set -euo pipefail
cd "$(dirname "$0")/.."
unpacked=$(mktemp -d)
for wheel in .carry/*.whl; do
  python3 -m zipfile -e "$wheel" "$unpacked"
done
export PYTHONPATH="$PWD/src:$PWD:$unpacked" CONSILIA_DATA="$PWD/.carry" PYTHONUNBUFFERED=1
if [ -z "${MPS:-}" ]; then
  exec "$@"
fi

export CUDA_MPS_PIPE_DIRECTORY="$unpacked/mps" CUDA_MPS_LOG_DIRECTORY="$unpacked/mps-log"
mkdir "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
probe() { python3 -c 'import torch; torch.ones(1, device="cuda").sum().item()' 2>/dev/null; }
if nvidia-cuda-mps-control -d && probe; then
  trap 'echo quit | nvidia-cuda-mps-control' EXIT
  CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${SHARE:-25} "$@"
else
  echo "processes take turns on the card: no MPS" >&2
  unset CUDA_MPS_PIPE_DIRECTORY
  "$@"
fi
