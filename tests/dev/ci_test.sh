#!/usr/bin/env bash
# Runs .ci/run in a scratch tree, with programs that replace CMake and ctest. It must run each
# build's daily tests, and its last line must count all of them, whatever fails.
. "$(dirname "${BASH_SOURCE[0]}")/scratch_tree.sh"

# One test of each build passes, unless the file `fail` names the build. The file `silent` names a
# build without a report.
stand_in ctest '
again=
while [[ $# -gt 0 ]]; do
  case $1 in
    --test-dir) preset=${2##*/} ;;
    -L | -LE) labels="$1 $2" ;;
    -R) again=" again" ;;
    --output-junit) report=$2 ;;
  esac
  shift
done
echo "ctest $preset ${labels-}$again" >>"$log"
scratch=$(dirname "$log")
grep -qsx "$preset" "$scratch/silent" && exit 8
status=run
grep -qsx "$preset" "$scratch/fail" && status=fail
printf "<testcase name=\"T\" status=\"%s\">\n</testcase>\n" $status >"$report"'
# On Debian the package database tells whether there is a LibTorch. Elsewhere the compiler does, and
# this one succeeds. The environment of pip exists already.
stand_in c++ ':'
mkdir -p build/torch/environment/bin
printf '#!/bin/sh\n' >build/torch/environment/bin/pip
chmod +x build/torch/environment/bin/pip

ci() { # the expected lines of the log
  : >"$scratch/log"
  .ci/run >"$scratch/output" 2>&1 && code=0 || code=$?
  diff "$scratch/log" <(printf '%s\n' "$@") || fail "it did not run the above; it said: $(cat "$scratch/output")"
}
release='ctest release -LE ^(full|release_long)$'
asan='ctest asan+ubsan -L ^asan$'
tsan='ctest tsan -L ^tsan$'
torch='ctest release -L ^smoke$'

ci "$release" "$asan" "$tsan" "$torch"
[[ $code == 0 ]] || fail "all has passed: $(cat "$scratch/output")"
[[ $(tail -n 1 "$scratch/output") == '4 passed, 0 failed, 0 flaky, 0 skipped' ]] ||
  fail "it did not count all: $(cat "$scratch/output")"

# A failure makes the whole run fail, and is counted with all others. So does a build whose tests
# leave no report.
echo tsan >"$scratch/fail"
ci "$release" "$asan" "$tsan" 'ctest tsan  again' "$torch"
[[ $code != 0 ]] || fail "a failure under tsan passed"
[[ $(tail -n 1 "$scratch/output") == '3 passed, 1 failed, 0 flaky, 0 skipped' ]] ||
  fail "it did not count all: $(cat "$scratch/output")"
echo release >"$scratch/fail"
ci "$release" 'ctest release  again' "$asan" "$tsan" "$torch" 'ctest release  again'
[[ $code != 0 ]] || fail "a failure passed"
: >"$scratch/fail"
echo asan+ubsan >"$scratch/silent"
ci "$release" "$asan" "$torch"
[[ $code != 0 ]] || fail "a build without a report passed"
grep -q 'ctest left no report of the asan+ubsan tests' "$scratch/output" || fail "$(cat "$scratch/output")"

# The summary needs a report of each build.
! ./dev summary >"$scratch/output" 2>&1 || fail "three reports were enough for a summary"
grep -q 'there is no build/reports/asan+ubsan.xml' "$scratch/output" || fail "$(cat "$scratch/output")"
