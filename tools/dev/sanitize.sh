#!/usr/bin/env bash
# ./dev sanitize      build and run again, under asan+ubsan and then tsan, the tests of code that manages
#                     memory, reads foreign bytes or has threads
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

require_all build test
build asan+ubsan "${sanitized[@]}" asan_tests
build_beside tsan "${sanitized[@]}" tsan_tests
# With this option a trap of ubsan (cmake/TuttiBuild.cmake) is reported with its location.
ASAN_OPTIONS=handle_sigill=1${ASAN_OPTIONS:+:$ASAN_OPTIONS} \
  run_tests asan+ubsan $reports/asan+ubsan.xml -L '^asan$'
end_beside
build tsan "${sanitized[@]}" tsan_tests
shares=4 # nothing is built beside these
run_tests tsan $reports/tsan.xml -L '^tsan$'
summarize $reports/{asan+ubsan,tsan}.xml
