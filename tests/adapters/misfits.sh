#!/usr/bin/env bash
# Checks that CASE 0 of a source compiles and that every other CASE fails. The compiler's output
# must contain the text of the line "CASE == N  // want: ...".
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
  # The source breaks texts over lines; the compiler's output does not.
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
