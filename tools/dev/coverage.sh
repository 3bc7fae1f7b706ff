#!/usr/bin/env bash
# ./dev coverage [RE] what each test program covers of the library that no other does; with an expression,
#                     each case of the programs whose name matches; run it again to go on
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# -le 1 ]] || fail "coverage takes one expression, for the names of test programs, or nothing, and was given: $*"

require_all build test
build coverage -DTUTTI_QUICK_BUILD=ON
python3 tests/coverage/alone.py build/coverage "$@"
