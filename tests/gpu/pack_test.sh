#!/usr/bin/env bash
# pack_test.sh BUILD: `gpu-test pack` makes a folder of less than 50 MB whose programs need nothing
# of the build tree. A window reports in one line that there is no GPU.
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
fail() {
  echo "pack_test: $*" >&2
  exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

tests/gpu/gpu_test.sh pack "$build" "$scratch/gpu"
[[ $(du -sm "$scratch/gpu" | cut -f1) -lt 50 ]] || fail "the folder is too large"

mkdir "$scratch/there"
tar -C "$scratch/there" -xzf "$scratch/gpu/programs.tar.gz"
# Libraries must be found in the folder, not in the build tree, and none of them may be CUDA's.
export LD_LIBRARY_PATH=$scratch/there/lib
for file in "$scratch"/there/bin/* "$scratch"/there/lib/*; do
  needs=$(ldd "$file")
  ! grep 'not found' <<<"$needs" || fail "$(basename "$file") lacks a library"
  ! grep -F "$build" <<<"$needs" || fail "$(basename "$file") uses a library of the build"
done
started=0
for program in "$scratch"/there/bin/*; do
  option=--help
  [[ $program != *_test ]] || option=--gtest_list_tests
  timeout 20 "$program" "$option" >/dev/null || fail "$(basename "$program") does not start"
  started=$((started + 1))
done
[[ $started -ge 3 ]] || fail "only $started programs were packed"
! ls "$scratch/there/lib" | grep -E '^lib(cuda|cudart|cudnn|cublas|nccl)' || fail "a library of CUDA was packed"

[[ ! -e /dev/nvidia0 ]] || exit 0
cd "$scratch"
for window in runs right fast; do
  code=0
  gpu/gpu-test "$window" >said 2>&1 || code=$?
  [[ $code != 0 ]] || fail "$window succeeded without a GPU"
  [[ $(wc -l <said) == 1 ]] || fail "$window said more than one line: $(<said)"
  grep -q 'no GPU' said || fail "$window did not say why: $(<said)"
done
echo "$started programs start; $(<said)"
