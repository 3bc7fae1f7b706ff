#!/usr/bin/env bash
# ./dev summary       count the last results of test, sanitize and test --torch together; it fails if
#                     one of them left none
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

all=()
for name in release asan+ubsan tsan torch; do
  [[ -s $reports/$name.xml ]] || fail "there is no $reports/$name.xml: test, sanitize and test --torch make them"
  all+=("$reports/$name.xml")
done
# Only the counts are printed. Each job has already named what failed, and what was skipped and why.
summarize "${all[@]}" | tail -n 1
