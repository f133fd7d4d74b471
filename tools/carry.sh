#!/usr/bin/env bash
# Fill .carry/ with what a GPU machine without a network needs to run studies and has not: wheels, and data packs.
#
#   tools/carry.sh 3.12 PACKS/faz128.* PACKS/nuclei256.*     # that machine's Python, then files to take along
#
# There, benchmarks/lease.sh unpacks the wheels and runs a command. It must have PyTorch (with Triton), NumPy, SciPy,
# scikit-image, safetensors and rich. LIMIT is how many MiB may travel, the tree of the project included.
set -euo pipefail
cd "$(dirname "$0")/.."
python_version=$1
shift
wheels=(annotated-types cloudpickle jaxtyping joblib monai narwhals psutil pydantic pydantic-core scikit-learn threadpoolctl
  tomli-w typing-extensions typing-inspection wadler-lindig)

rm -rf .carry
mkdir .carry
.venv/bin/python -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: \
  --python-version "$python_version" --dest .carry -c constraints.txt "${wheels[@]}"
[ $# -eq 0 ] || cp -- "$@" .carry/
du -sh .carry
tree=$(git ls-files -z --cached --others --exclude-standard | du --files0-from=- -cm --apparent-size | tail -n 1 | cut -f 1)
here=$(du -sm --apparent-size .carry | cut -f 1)
if [ $((tree + here)) -gt "${LIMIT:-64}" ]; then
  echo "carry.sh: .carry has $here MiB and the tree $tree, more than the ${LIMIT:-64} MiB that may travel; take fewer packs" >&2
  exit 1
fi
