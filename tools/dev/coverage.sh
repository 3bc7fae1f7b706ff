#!/usr/bin/env bash
# ./dev coverage [RE] for each test program, the code of the library that only it covers; with an
#                     expression, the same for each case of the programs whose name matches; run it
#                     again to go on after a stop
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# -le 1 ]] || fail "coverage takes one expression, for the names of test programs, or nothing, and was given: $*"

require_all build test
build coverage -DTUTTI_QUICK_BUILD=ON
python3 tests/coverage/alone.py build/coverage "$@"
