#!/usr/bin/env bash
# ./dev test          build the release build and run the tests of every day
# ./dev test --torch  the Python tests that need JAX or the newest torch, in an environment of their own
#                     under build/ that pip fills (5 GB; TUTTI_TORCH_VERSION picks another torch); with
#                     --smoke a few of them
# ./dev test --full   everything at full count, part by part; run it again to go on after a stop
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

test_every_day() {
  require_all build test
  look_for_libtorch
  build release "${every_day[@]}" "$libtorch"
  # CI runs ./dev sanitize next, so its first build is made beside these tests.
  [[ -z ${CI-} ]] || build_beside asan+ubsan "${sanitized[@]}" asan_tests
  run_release $reports/release.xml -LE '^(full|release_long)$'
  [[ -z ${CI-} ]] || end_beside
  tabulate $reports/release.xml
  summarize $reports/release.xml
}

case "$*" in
  "") test_every_day ;;
  --full) . tools/dev/test_full.sh ;;
  --torch | "--torch --smoke") . tools/dev/test_torch.sh "${2-}" ;;
  *) fail "test takes --full, --torch, --torch --smoke or nothing, and was given: $*" ;;
esac
