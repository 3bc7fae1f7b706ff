#!/usr/bin/env bash
# expect_output.sh TEXT PROGRAM...: the program must succeed and print exactly TEXT.
set -euo pipefail
printed=$("${@:2}")
if [[ $printed != "$1" ]]; then
  echo "printed \"$printed\" instead of \"$1\"" >&2
  exit 1
fi
