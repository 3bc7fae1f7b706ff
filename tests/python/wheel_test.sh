#!/usr/bin/env bash
# wheel_test.sh SOURCE PYTHON: builds the wheel from a copy of the tree, installs it into a
# fresh virtual environment and runs the example there on 2 ranks. Needs the package index for
# scikit-build-core and numpy.
set -euo pipefail
source=$1 python=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

skip() {
  echo "wheel test: skipped: $*"
  exit 77
}

"$python" -m venv "$scratch/builds" || skip "$python makes no virtual environment (python3-venv)"
"$scratch/builds/bin/pip" install -q 'scikit-build-core>=0.10' build ||
  skip "scikit-build-core cannot be had from the package index"
# The sdist first, so that the wheel is made of what is in it.
git -C "$source" ls-files -z --cached --others --exclude-standard |
  (cd "$source" && xargs -0 tar -c --ignore-failed-read) | (mkdir "$scratch/tree" && tar -x -C "$scratch/tree")
cd "$scratch/tree"
"$scratch/builds/bin/python" -m build --outdir "$scratch/dist"
ls -l "$scratch/dist"
wheel=$(ls "$scratch"/dist/tutti_collectives-*-cp311-abi3-linux_*.whl)

"$python" -m venv "$scratch/uses"
"$scratch/uses/bin/pip" install -q "$wheel" numpy
cd /
env -u PYTHONPATH PATH="$scratch/uses/bin:/usr/bin:/bin" \
  tutti-run -np 2 "$scratch/uses/bin/python" "$source/examples/numpy_allreduce.py"
env -u PYTHONPATH "$scratch/uses/bin/python" -c 'import tutti; print(tutti.__version__)'
