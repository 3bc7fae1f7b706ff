# Makes a scratch tree with the project's jobs, and programs that replace the tools that the jobs
# call. The tests of ./dev read this file first and then run in that tree.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}

mkdir -p "$scratch/bin" "$scratch/tree/tests" "$scratch/tree/tools" "$scratch/tree/cmake/abi"
cd "$scratch/tree"
cp -r "$root/dev" "$root/.ci" .
cp -r "$root/tools/dev" tools
cp "$root"/cmake/*.awk cmake
cp "$root"/cmake/abi/*.awk cmake/abi
cp "$root"/tests/{flaky,skips}.txt tests
echo '/build/' >.gitignore

stand_in() { # name, body
  printf '#!/usr/bin/env bash\nlog=%q\n%s\n' "$scratch/log" "$2" >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
stand_in cmake ':'
stand_in dpkg-query 'echo installed'
export PATH=$scratch/bin:$PATH
