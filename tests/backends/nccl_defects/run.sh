#!/usr/bin/env bash
# run.sh SOURCE BUILD CXX: shows that the tests of backend nccl find mistakes. They pass over the
# plugin as it is, and fail over each of the plugins that are built from a copy with one of the
# patches here applied. Prints a table with the first thing that each run complained of.
set -euo pipefail
source_folder=$1 build=$2 compiler=$3
here=$source_folder/tests/backends/nccl_defects
scratch=$(mktemp -d "${TMPDIR:-/tmp}/tutti-defects-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Headers as in the tree, but for the copy of the backends.
mkdir -p "$scratch/include/tutti" "$scratch/lib"
for floor in base tensor kernels collectives; do
  ln -s "$source_folder/$floor" "$scratch/include/tutti/$floor"
done
ln -s "$scratch/tree/backends" "$scratch/include/tutti/backends"
# The library looks for plugins beside itself.
cp -L "$build"/libtutti.so* "$scratch/lib/"
includes=(-I "$scratch/include" -isystem /usr/local/include -isystem /usr/local/cuda/include)

build_plugin() { # patch or nothing
  rm -rf "$scratch/tree" "$scratch"/*.o
  mkdir -p "$scratch/tree"
  cp -r "$source_folder/backends" "$scratch/tree/backends"
  if [[ -n $1 ]]; then patch -s -p1 -d "$scratch/tree" <"$1"; fi
  local file
  for file in "$scratch"/tree/backends/nccl/*.cc; do
    "$compiler" -std=c++20 -O1 -fPIC "${includes[@]}" -c "$file" \
      -o "$scratch/$(basename "$file").o"
  done
  "$compiler" -shared -o "$scratch/lib/libtutti_backend_nccl.so" "$scratch"/*.o \
    -L "$scratch/lib" -ltutti -lfmt -ldl
}

# Prints the first complaint; fails if a test program does.
run_tests() {
  local program code=0
  for program in nccl_backend_test nccl_communicator_test; do
    LD_LIBRARY_PATH=$scratch/lib timeout 120 "$build/tests/backends/$program" --gtest_brief=1 \
      --gtest_fail_fast >"$scratch/$program.log" 2>&1 || code=1
    if ((code)); then
      grep -hm1 -E 'fake NCCL:|Failure|terminate|did not end|timed out' -A3 \
        "$scratch/$program.log" | tr '\n' ' ' | cut -c1-140
      return 1
    fi
  done
}

failures=0
build_plugin ""
if complaint=$(run_tests); then
  printf '%-28s green\n' "(no defect)"
else
  printf '%-28s RED, but should be green: %s\n' "(no defect)" "$complaint"
  failures=1
fi
count=0
for patch_file in "$here"/*.patch; do
  count=$((count + 1))
  build_plugin "$patch_file"
  name=$(basename "$patch_file" .patch)
  if complaint=$(run_tests); then
    printf '%-28s GREEN, but should be red\n' "$name"
    failures=1
  else
    printf '%-28s red: %s\n' "$name" "$complaint"
  fi
done
if ((count < 5)); then echo "only $count patches are there"; exit 1; fi
exit $failures
