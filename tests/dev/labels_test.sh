#!/usr/bin/env bash
# labels_test.sh BUILD [LABEL...]: labels decide when a test runs. Each label that a job selects by
# must have tests, jobs must know each label that tests have, and each pattern of tutti_cases() must
# match a case. BUILD has all of its tests built, except those with the given LABELs, whose
# dependencies are missing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 lacking=("${@:2}")

fail() {
  echo "labels test: $*" >&2
  exit 1
}

# Jobs write labels as '^label$' or '^(label|other)$'.
mapfile -t used < <(grep -ohE "'\^[a-z_()|]+\\$'" "$root"/tools/dev/*.sh | tr -cs 'a-z_' '\n' | grep . | sort -u)
[[ ${#used[@]} -gt 5 ]] || fail "the jobs select tests by no labels"
mapfile -t given < <(ctest --test-dir "$build" --print-labels 2>/dev/null | sed -n 's/^  //p')
for label in "${used[@]}"; do
  if [[ " ${lacking[*]} " == *" $label "* ]]; then
    grep -rqw --include=CMakeLists.txt "$label" "$root/tests" || fail "no test is labelled $label"
  else
    [[ " ${given[*]} " == *" $label "* ]] || fail "no test of $build is labelled $label"
  fi
done
for label in "${given[@]}"; do
  [[ " ${used[*]} " == *" $label "* ]] || fail "tests are labelled $label, which no job of tools/dev knows"
done

! ctest --test-dir "$build" -N 2>&1 | grep '^labels: no case' || fail "tests/labels.cmake says what a pattern is"

# A test's name in a job would be a rule that is not visible beside the test.
! grep -nE -- " -[RE] ('|\"[^\"$]*\")" "$root"/tools/dev/*.sh "$root/.ci/run" || fail "the above selects tests by their names"
