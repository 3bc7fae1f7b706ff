#!/usr/bin/env bash
# Checks a trainer that existed before Tutti. It marks each line that was added, and keeps the old
# text of changed lines. There are at most 20 such lines. Without them, the program does not use
# Tutti and still compiles.
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
# Comments may mention Tutti.
if grep -niE '^[^/*]*tutti' "$before" | grep -vE '^[0-9]+: ?(\*|//)'; then
  echo "$source: a line that Tutti needs is not marked" >&2
  exit 1
fi
# It includes headers of other libraries and of the system only.
"${compiler[@]}" -fsyntax-only "$before"
echo "$added added lines"
