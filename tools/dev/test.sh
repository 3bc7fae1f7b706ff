#!/usr/bin/env bash
# ./dev test          build and run the tests of every day; what keeps memory, reads bytes of others or
#                     has threads once more under asan+ubsan and tsan
# ./dev test --torch  the Python tests that need JAX or the newest torch, in an environment of their own
#                     under build/ that pip fills (5 GB; TUTTI_TORCH_VERSION picks another torch); with
#                     --smoke a few of them
# ./dev test --full   everything at full count, part by part; run it again to go on after a stop
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

test_every_day() {
  require_all build test
  look_for_libtorch
  build release "${every_day[@]}" "$libtorch"
  # Sanitizers do not look into LibTorch.
  local sanitized=("${every_day[@]}" -DTUTTI_TORCH=OFF)
  build_beside asan+ubsan "${sanitized[@]}" asan_tests
  run_release $reports/release.xml -LE '^(full|release_long)$'
  end_beside
  build asan+ubsan "${sanitized[@]}" asan_tests
  build_beside tsan "${sanitized[@]}" tsan_tests
  # A trap of ubsan's (cmake/TuttiBuild.cmake) is reported with its place.
  ASAN_OPTIONS=handle_sigill=1${ASAN_OPTIONS:+:$ASAN_OPTIONS} \
    run_tests asan+ubsan $reports/asan+ubsan.xml -L '^asan$'
  end_beside
  build tsan "${sanitized[@]}" tsan_tests
  shares=4 # nothing is built beside these
  run_tests tsan $reports/tsan.xml -L '^tsan$'
  tabulate $reports/release.xml
  summarize $reports/{release,asan+ubsan,tsan}.xml
}

case "$*" in
  "") test_every_day ;;
  --full) . tools/dev/test_full.sh ;;
  --torch | "--torch --smoke") . tools/dev/test_torch.sh "${2-}" ;;
  *) fail "test takes --full, --torch, --torch --smoke or nothing, and was given: $*" ;;
esac
