#!/usr/bin/env bash
# Each CASE of a source that is not 0 does not compile, and the compiler's words are those of its
# line "CASE == N  // want: ..."; CASE 0 compiles.
#   misfits.sh SOURCE COMPILER [flags]
set -euo pipefail
source=$1 compiler=("${@:2}")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

try() { "${compiler[@]}" -fsyntax-only "-DCASE=$1" "$source" >"$log" 2>&1; }

if ! try 0; then
  cat "$log" >&2
  echo "$source: CASE 0 should compile" >&2
  exit 1
fi
cases=0
while read -r number want; do
  if try "$number"; then
    echo "$source: CASE $number compiles, expected: $want" >&2
    exit 1
  fi
  # Texts are broken over lines in the source alone.
  if ! grep -qF -- "$want" "$log"; then
    head -40 "$log" >&2
    echo "$source: CASE $number does not say: $want" >&2
    exit 1
  fi
  cases=$((cases + 1))
done < <(sed -nE 's|^#(el)?if CASE == ([0-9]+)\s+// want: (.*)$|\2 \3|p' "$source")
if ((cases < 5)); then
  echo "$source: only $cases cases were found" >&2
  exit 1
fi
echo "$cases cases do not compile"
