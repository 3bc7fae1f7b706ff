#!/usr/bin/env bash
# A trainer that was there before Tutti marks each line that was added, and what a changed line was.
# They are at most 20, and without them it is a program that knows nothing of Tutti and compiles.
#   added_lines.sh SOURCE COMPILER [flags]
set -euo pipefail
source=$1 compiler=("${@:2}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mark='(//|/\*) tutti( \*/|: was .*)?$'

added=$(grep -cE "$mark" "$source")
if ((added < 5 || added > 20)); then
  echo "$source: $added added lines, expected 5 to 20" >&2
  exit 1
fi
before=$scratch/$(basename "$source")
sed -E -e 's|^( *).*// tutti: was (.*)$|\1\2|' -e "\\#$mark#d" "$source" >"$before"
# Comments may speak of it.
if grep -niE '^[^/*]*tutti' "$before" | grep -vE '^[0-9]+: ?(\*|//)'; then
  echo "$source: a line that Tutti needs is not marked" >&2
  exit 1
fi
# Its includes are those of other libraries and the system alone.
"${compiler[@]}" -fsyntax-only "$before"
echo "$added added lines"
