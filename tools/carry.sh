#!/usr/bin/env bash
# Fill .carry/ with what a GPU machine without a network needs to run studies and has not: wheels, and data packs.
#
#   tools/carry.sh 3.12 PACKS/faz128.* PACKS/nuclei256.*     # that machine's Python, then files to take along
#
# There, benchmarks/lease.sh unpacks the wheels and runs a command. It must have PyTorch (with Triton), NumPy, SciPy,
# scikit-image, safetensors and rich.
set -euo pipefail
cd "$(dirname "$0")/.."
python_version=$1
shift
wheels=(annotated-types jaxtyping joblib narwhals psutil pydantic pydantic-core scikit-learn threadpoolctl tomli-w
  typing-extensions typing-inspection wadler-lindig)

rm -rf .carry
mkdir .carry
.venv/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: \
  --python-version "$python_version" --dest .carry -c constraints.txt "${wheels[@]}"
[ $# -eq 0 ] || cp -- "$@" .carry/
du -sh .carry
