#!/usr/bin/env bash
# ./dev check         formatting, the reference, clang-tidy, floors, one definition per name, the whole
#                     suite under every sanitizer, part by part; run it again to go on after a stop
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

check_format() { sources | xargs -0 clang-format --dry-run -Werror; }

# Compiled C programs rely on what abidiff compares. New functions, and new fields at the end of
# structs, are allowed.
check_abi() {
  describe_abi build/abi/c.abi
  abidiff --no-added-syms --suppressions cmake/abi/grows.suppr cmake/abi/c.abi build/abi/c.abi
}

# Prints the project's sources that this build compiles. If a package is missing, some sources
# replace others.
compiled() {
  local source
  while read -r -d '' source; do
    if grep -qF "/$source\"" build/release/compile_commands.json; then
      printf '%s\0' "$source"
    fi
  done < <(git ls-files -z '*.cc' ':!tests' ':!benchmarks')
}

# Each source that passes leaves a mark: the checksums of all files that it is made of. As long as
# these files stay the same, in whatever commit, the source is not checked again.
check_tidy() {
  local marks=$PWD/build/check/tidy made_of=$PWD/$state/tidy source
  rm -rf "$made_of"
  mkdir -p "$marks" "$made_of"
  compiled | tr '\0' '\n' >"$made_of/sources"
  (
    cd build/release
    ninja -t deps >"$made_of/deps"
    { echo ../../.clang-tidy && sed -n 's/^    //p' "$made_of/deps"; } | sort -u |
      xargs -d '\n' sha1sum >"$made_of/sums"
  )
  awk -v here="$PWD/" -v made_of="$made_of" -f cmake/made_of.awk \
    "$made_of/sources" "$made_of/sums" "$made_of/deps"
  while read -r source; do
    cmp -s "$made_of/${source//\//_}" "$marks/${source//\//_}" || printf '%s\0' "$source"
  done <"$made_of/sources" | xargs -0 -r -n 1 -P "$processors" bash -c \
    'clang-tidy -p build/release --quiet "$2" && cp "$0/${2//\//_}" "$1"' "$made_of" "$marks"
}

require_all build test check
begin_parts check
step format check_format
step reference reference
step abi check_abi
build release -DTUTTI_QUICK_BUILD=OFF # clang-tidy wants each source by itself
part floors run_release -L '^floors$'
sanitizer_parts asan+ubsan run_asan_in_full
sanitizer_parts tsan run_tsan_in_full
# Only the linker sees that two sources define different classes of the same name.
step odr build odr tutti
step tidy check_tidy
echo "results of commit $commit:"
summarize "$state"/*.xml
