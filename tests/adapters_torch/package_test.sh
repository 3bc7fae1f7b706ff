#!/usr/bin/env bash
# package_test.sh BUILD LAUNCHER CXX: a separate project finds the installed component torch. If the
# component was not installed, the project gets one line with the reason.
set -euo pipefail
build=$1 run=$2 cxx=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

configure() {
  cmake -S "$here/consumer" -B "$scratch/$1" -DCMAKE_PREFIX_PATH="$scratch/prefix" \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Debug
}
for component in runtime nn development; do
  cmake --install "$build" --prefix "$scratch/prefix" --component "$component" >/dev/null
done
if configure without >"$scratch/refusal" 2>&1; then
  echo "a component that was not installed was found" >&2
  exit 1
fi
grep -q "component torch was not installed: configure Tutti with -DTUTTI_TORCH=ON" \
  <(tr -s ' \n' ' ' <"$scratch/refusal") || { cat "$scratch/refusal" >&2; exit 1; }

for component in torch torch_development; do
  cmake --install "$build" --prefix "$scratch/prefix" --component "$component" >/dev/null
done
configure with >/dev/null
cmake --build "$scratch/with"
"$run" -np 2 "$scratch/with/torch_consumer"
