#!/usr/bin/env bash
# wheel_test.sh SOURCE PYTHON [TORCH_PYTHON]: tests the wheel of `./dev wheel` in a new virtual
# environment without a compiler in PATH, `pip install .`, and the sdist. The examples run with each
# of them. Those for PyTorch and JAX need these in TORCH_PYTHON (by default PYTHON). Needs the
# package index for scikit-build-core, auditwheel and numpy.
set -euo pipefail
source=$1 python=$2 torch_python=${3:-$2}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset PYTHONPATH

skip() {
  echo "wheel test: skipped: $*"
  exit 77
}
fail() {
  echo "wheel test: $*" >&2
  exit 1
}

"$python" -m venv "$scratch/probe" || skip "$python makes no virtual environment (python3-venv)"
"$scratch/probe/bin/pip" download -q --no-deps -d "$scratch/probe" 'scikit-build-core>=0.10' ||
  skip "scikit-build-core cannot be had from the package index"

# Works in a copy, so that no file comes from a build in the tree.
mkdir "$scratch/tree"
git -C "$source" ls-files -z --cached --others --exclude-standard |
  (cd "$source" && xargs -0 tar -c --ignore-failed-read) | tar -x -C "$scratch/tree"

# The programs in the path of a machine without a compiler.
mkdir "$scratch/bin"
for tool in env sh bash cat ls sed uname dirname; do ln -s "$(command -v $tool)" "$scratch/bin/"; done

# run_examples ENVIRONMENT: runs the examples from a folder outside of the tree. Modules that the
# environment lacks come from TORCH_PYTHON.
run_examples() {
  local environment=$1 example others
  others=$("$torch_python" -c 'import os, numpy; print(os.path.dirname(os.path.dirname(numpy.__file__)))')
  mkdir -p "$scratch/elsewhere"
  cd "$scratch/elsewhere"
  local run=(env PATH="$environment/bin:$scratch/bin" tutti-run -np 2)
  "${run[@]}" python "$source/examples/numpy_allreduce.py"
  env PATH="$environment/bin:$scratch/bin" python -m tutti.run -np 2 \
    python "$source/examples/numpy_allreduce.py"
  for example in torch_mnist:torch horovod_mnist:torch jax_mnist:jax; do
    if ! "$torch_python" -c "import ${example#*:}" 2>/dev/null; then
      echo "wheel test: $torch_python has no ${example#*:}: ${example%:*}.py is left out"
      continue
    fi
    "${run[@]}" env PYTHONPATH="$others" python "$source/examples/${example%:*}.py"
  done
  cd /
}

echo "--- the wheel, as it is released"
TUTTI_WHEEL_FOLDER=$scratch/wheel "$scratch/tree/dev" wheel
wheel=$(ls "$scratch"/wheel/dist/tutti_collectives-*-cp311-abi3-*manylinux_2_36_*.whl) ||
  fail "there is no such wheel: $(ls "$scratch"/wheel/dist)"
"$python" -m zipfile -l "$wheel" | awk '{ print $1 }' >"$scratch/files"
for file in tutti/_native.abi3.so tutti/bin/tutti-run 'tutti/lib/libtutti.so.*' tutti/py.typed \
  tutti/__init__.pyi tutti/lib/libtutti_backend_nccl.so; do
  grep -qx "$file" "$scratch/files" || fail "the wheel has no $file: $(cat "$scratch/files")"
done
if command -v nvcc /usr/local/cuda/bin/nvcc >/dev/null; then
  grep -qx 'tutti/lib/libtutti_device_cuda.so' "$scratch/files" || fail "the wheel has no plugin cuda"
fi
grep -E 'libtutti_backend_(gloo|ucx)|libtorch|libcuda|libnccl' "$scratch/files" &&
  fail "the wheel carries the above"

"$python" -m venv "$scratch/uses"
"$scratch/uses/bin/pip" install -q numpy
env PATH="$scratch/uses/bin:$scratch/bin" pip install -q --no-index "$wheel"
run_examples "$scratch/uses"
clean=(env -i PATH="$scratch/uses/bin:$scratch/bin" python)
"${clean[@]}" -c '
import tutti, ctypes
assert tutti.__version__ == "'"$(sed -n 's/^project(tutti VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")"'", tutti.__version__
maps = open("/proc/self/maps").read()
assert "site-packages/tutti/lib/libtutti.so" in maps, maps
assert "libcuda" not in maps and "libtorch" not in maps, maps' || fail "the wheel did not load by itself"
[[ -z $("${clean[@]}" -c 'import tutti' 2>&1) ]] || fail "importing says something"

echo "--- the other distribution of that name"
packages=$("${clean[@]}" -c 'import os, tutti; print(os.path.dirname(os.path.dirname(tutti.__file__)))')
mkdir "$packages/tutti-1.0.dist-info"
said=$("${clean[@]}" -c 'import tutti; print(tutti.Communicator.create().size)' 2>&1)
[[ $(wc -l <<<"$said") == 2 && $said == "tutti: another distribution of the name tutti is installed in "* ]] ||
  fail "of another distribution it says: $said"
rm -r "$packages/tutti-1.0.dist-info"

echo "--- pip install ."
"$python" -m venv "$scratch/clone"
"$scratch/clone/bin/pip" install -q numpy
(cd "$scratch/tree" && "$scratch/clone/bin/pip" install -q .)
run_examples "$scratch/clone"

echo "--- the sdist"
"$python" -m venv "$scratch/sdist"
"$scratch/sdist/bin/pip" install -q numpy "$scratch"/wheel/dist/tutti_collectives-*.tar.gz
run_examples "$scratch/sdist"
