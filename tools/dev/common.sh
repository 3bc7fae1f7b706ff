# The settings and functions that the jobs of ./dev share. Each job reads this file first, which
# also changes to the root of the tree.
set -euo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" # where Debian keeps ip, munged and slurmd

fail() {
  echo "dev: $*" >&2
  exit 1
}

takes_nothing() { # arguments of the job
  [[ $# == 0 ]] || fail "$(basename "$0" .sh) takes no arguments, and was given: $*"
}

# These variables belong to the jobs and are unset here, because the library refuses TUTTI_ settings
# that it does not know. The mirror is exported under another name, for tests of packages and for
# jobs that another job starts.
torch_version=${TUTTI_TORCH_VERSION-}
export DEBIAN_MIRROR=${TUTTI_DEBIAN_MIRROR-${DEBIAN_MIRROR-http://deb.debian.org/debian}}
wheel_folder=${TUTTI_WHEEL_FOLDER:-$PWD/build/wheel}
unset TUTTI_TORCH_VERSION TUTTI_DEBIAN_MIRROR TUTTI_WHEEL_FOLDER

# --- packages ------------------------------------------------------------------------------------

# The packages that the jobs need. Each line has the group of jobs, the Debian package, and how to
# check on another system that it is installed.
packages='
build g++               command c++
build cmake             command cmake
build ninja-build       command ninja
build pkg-config        command pkg-config
build libboost-dev      header  boost/asio.hpp
build libfmt-dev        header  fmt/format.h
build libhwy-dev        header  hwy/highway.h
build libdnnl-dev       header  dnnl.hpp
build librandom123-dev  header  Random123/philox.h
build libssl-dev        header  openssl/evp.h
build zlib1g-dev        header  zlib.h
build libcli11-dev      header  CLI/CLI.hpp
build nlohmann-json3-dev header nlohmann/json.hpp
build libxxhash-dev     header  xxhash.h
build libdlpack-dev     header  dlpack/dlpack.h
build libeigen3-dev     header  eigen3/Eigen/Core
build python3-dev       command python3-config
plugins libgloo-dev     header  gloo/allreduce.h
plugins libucx-dev      header  ucp/api/ucp.h
build libgtest-dev      header  gtest/gtest.h
build libgmock-dev      header  gmock/gmock.h
test  git               command git
test  iproute2          command ip
test  openmpi-bin       command mpirun.openmpi
test  mpich             command mpiexec.mpich
test  slurm-wlm         command srun
test  munge             command munged
test  libpmix-dev       header  pmix.h
test  python3           command python3
test  python3-numpy     module  numpy
test  python3-torch     module  torch
test  libtorch-dev      header  torch/version.h
test  python3-venv      module  ensurepip
test  mypy              module  mypy
test  help2man          command help2man
test  clang-16          command clang++-16
test  libclang-rt-16-dev command clang++-16
test  llvm-16           command llvm-symbolizer-16
package help2man        command help2man
package dpkg-dev        command dpkg-shlibdeps
package lintian         command lintian
package debootstrap     command debootstrap
wheel python3-venv      module  ensurepip
bench iproute2          command ip
bench libmpich-dev      command mpicxx.mpich
bench libopenmpi-dev    command mpicxx.openmpi
bench mpich             command mpiexec.mpich
bench openmpi-bin       command mpirun.openmpi
bench libtorch-dev      header  torch/version.h
bench python3           command python3
bench python3-torch     module  torch
aarch64 g++-aarch64-linux-gnu command aarch64-linux-gnu-g++
aarch64 qemu-user       command qemu-aarch64
aarch64 debootstrap     command debootstrap
fuzz  clang-16          command clang++-16
fuzz  libclang-rt-16-dev command clang++-16
check clang-format      command clang-format
check clang-tidy        command clang-tidy
check doxygen           command doxygen
check abigail-tools     command abidiff
abi   abigail-tools     command abidw
docs  doxygen           command doxygen
'

# The Python that CMake builds for, whatever environment is active.
machines_python=/usr/bin/python3
[[ -x $machines_python ]] || machines_python=python3

is_debian() { [[ -r /etc/os-release ]] && (. /etc/os-release && [[ $ID == debian ]]); }

is_there() { # package kind probe
  if is_debian; then
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
  elif [[ $2 == command ]]; then
    command -v "$3" >/dev/null
  elif [[ $2 == module ]]; then
    "$machines_python" -c "import $3" >/dev/null 2>&1
  else
    echo "#include <$3>" | c++ -x c++ -E - >/dev/null 2>&1
  fi
}

# require build test ...: installs what these groups lack, or says what is missing.
require() {
  local group package kind probe missing=()
  while read -r group package kind probe; do
    [[ -n $group && " $* " == *" $group "* ]] || continue
    is_there "$package" "$kind" "$probe" || missing+=("$package")
  done <<<"$packages"
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! is_debian; then
    echo "dev: not found (by the names of Debian's packages): ${missing[*]}; going on without" >&2
    return 0
  fi
  local as_root=()
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || fail "missing: ${missing[*]}; install them as root"
    as_root=(sudo)
  fi
  echo "dev: installing from Debian: ${missing[*]}"
  "${as_root[@]}" apt-get -qq update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

# Like require(), for groups that build. Backends whose library cannot be installed are left out.
require_all() {
  require "$@"
  (require plugins) || echo "dev: going on without the backends that need it" >&2
}

# --- builds --------------------------------------------------------------------------------------

processors=$(nproc)
every_day=(-DTUTTI_FULL_TESTS=OFF -DTUTTI_LESS_OPTIMIZED=ON)

# An argument that begins with -D is a setting of the build, beside those of its preset. Every other
# argument is a target.
build() { # preset [setting or target...]
  local preset=$1 argument targets=() settings=(-DTUTTI_QUICK_BUILD=ON)
  # CI does not use ccache, because its cache is empty.
  [[ -z ${CI-} ]] && command -v ccache >/dev/null &&
    settings=(-DTUTTI_QUICK_BUILD=OFF -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  settings+=(-DTUTTI_LESS_OPTIMIZED=OFF)
  for argument in "${@:2}"; do
    if [[ $argument == -D* ]]; then settings+=("$argument"); else targets+=("$argument"); fi
  done
  mkdir -p build
  echo "dev: building $preset"
  cmake --preset "$preset" "${settings[@]}" >"build/$preset.log" 2>&1 || {
    cat "build/$preset.log" >&2
    fail "cmake could not configure the $preset build"
  }
  cmake --build --preset "$preset" -j "$processors" ${targets[0]+--target "${targets[@]}"}
}

# Builds at low priority while tests run. If the build fails, the next build() of that preset
# reports why.
build_beside() { # what build() takes
  (
    renice -n 19 -p "$BASHPID" >/dev/null
    build "$@"
  ) >"build/$1.beside.log" 2>&1 &
  beside=$!
}
end_beside() { wait "$beside" || true; }

# Sets `libtorch` to the setting for LibTorch's adapter, which is built if there is a LibTorch. CI
# fails without one.
look_for_libtorch() {
  libtorch=-DTUTTI_TORCH=ON
  is_there libtorch-dev header torch/version.h && return 0
  [[ -z ${CI-} ]] || fail "CI tests LibTorch's adapter, and there is no libtorch-dev"
  libtorch=-DTUTTI_TORCH=OFF
}

# The settings of the daily sanitizer builds. They leave LibTorch out, because the sanitizers do not
# check its code. When CI goes on with `./dev sanitize`, `./dev test` starts the first of these
# builds beside its tests.
sanitized=("${every_day[@]}" -DTUTTI_TORCH=OFF)

# --- tests: only labels select which tests run (tests/CMakeLists.txt) ----------------------------

reports=build/reports
# The number of shares per processor. Most tests take two shares. Tests that mostly wait take one,
# so they run beside the others.
shares=3

# Runs all tests, even if some fail. The report names those that failed.
run_tests() { # preset report [arguments of ctest]
  local preset=$1 report=$2
  mkdir -p "$(dirname "$report")"
  rm -f "$report"
  ctest --test-dir "build/$preset" -j $((shares * processors)) --no-tests=error --output-on-failure \
    --output-junit "$PWD/$report" "${@:3}" </dev/null || true
  [[ -s $report ]] || fail "ctest left no report of the $preset tests"
  run_failed_again "$preset" "$report"
}
run_release() { run_tests release "$@"; } # report [arguments of ctest]

# Runs the failed tests once more, one at a time, which tells flaky tests from broken ones. The
# second report is beside the first. If more than ten tests failed, they count as broken and are not
# run again.
run_failed_again() { # preset report
  local again=${2%.xml}.again.xml failed
  rm -f "$again"
  failed=$(awk -f cmake/junit.awk -f cmake/list_failed.awk "$2")
  [[ -n $failed && $(wc -l <<<"$failed") -le 10 ]] || return 0
  echo "dev: once more, alone: ${failed//$'\n'/ }"
  ctest --test-dir "build/$1" -j 1 --output-on-failure --output-junit "$PWD/$again" \
    -R "^($(sed 's/[][\\.*^$+?(){}|]/\\&/g' <<<"$failed" | paste -sd '|'))\$" </dev/null || true
}

# Names the failed, flaky and skipped tests, with the reason for each skip, and counts all tests.
# Fails if a test failed, or if CI skipped a test that tests/skips.txt does not list.
summarize() { # report...
  local report with_second=()
  for report in "$@"; do
    [[ $report != *.again.xml ]] || continue
    with_second+=("$report")
    [[ ! -s ${report%.xml}.again.xml ]] || with_second+=("${report%.xml}.again.xml")
  done
  awk -v in_ci="${CI:+1}" -f cmake/junit.awk -f cmake/summarize_tests.awk \
    tests/flaky.txt tests/skips.txt "${with_second[@]}"
}

# Prints which tests ran over which backend.
tabulate() { awk -f cmake/junit.awk -f cmake/tabulate_backends.awk "$@"; } # report...

# --- parts of what takes long --------------------------------------------------------------------

# Every part leaves its report, or a mark that it passed, in the folder of its job and commit. A
# part that has passed there is not run again.
begin_parts() { # job
  [[ -z $(git status --porcelain) ]] || fail "commit first: what $1 finds belongs to a commit"
  commit=$(git rev-parse --short=12 HEAD)
  state=build/$1/$commit
  mkdir -p "$state"
}
part() { # name command [arguments]; the report becomes the command's first argument
  local report=$state/${1//[^A-Za-z0-9_.+-]/_}.xml
  [[ -s $report ]] && summarize "$report" >/dev/null && return 0
  "$2" "$report" "${@:3}"
}
step() { # name command [arguments]: leaves no report, and its failure ends the job
  [[ -e $state/$1.passed ]] && return 0
  "${@:2}" || fail "$1 failed; run again, ./dev goes on from there"
  touch "$state/$1.passed"
}

# Runs the whole suite under a sanitizer, in parts of every n-th test.
sanitizer_parts() { # part command [settings of the build]
  local number count=6
  for ((number = 1; number <= count; ++number)); do
    part "$1-$number" "$2" "$number,,$count" "${@:3}"
  done
}
run_asan_in_full() { # report which [settings of the build]
  build asan+ubsan "${@:3}"
  run_tests asan+ubsan "$1" -LE '^full$' -I "$2"
}
run_tsan_in_full() { # report which [settings of the build]
  build tsan "${@:3}" tsan_full_tests
  run_tests tsan "$1" -L '^(tsan|tsan_long)$' -I "$2"
}

# --- sources -------------------------------------------------------------------------------------

# ten_lines.cc is left out, so that it stays as the README shows it.
sources() { git ls-files -z '*.h' '*.cc' '*.cu' '*.c' ':!examples/ten_lines.cc'; }

# Makes the reference. Doxygen warns of a public symbol whose comment is incomplete, and one warning
# is a failure.
reference() {
  mkdir -p build/docs
  rm -f build/docs/warnings
  local headers
  headers=$(sed -nE 's/^([a-z].*[.]h).*/\1/p' cmake/public_headers.txt)
  { cat cmake/Doxyfile && echo INPUT = cmake/doxygen_main.dox $headers; } | doxygen -
  [[ ! -s build/docs/warnings ]] || { cat build/docs/warnings >&2; return 1; }
}

describe_abi() { # file
  local folder=build/abi
  mkdir -p $folder
  awk -f cmake/abi/stubs.awk adapters/c/tutti.h >$folder/stubs.c
  cc -std=c11 -g -O0 -fPIC -shared $folder/stubs.c -o $folder/libtutti_c.so
  abidw --no-show-locs --no-corpus-path --no-comp-dir-path --out-file "$1" $folder/libtutti_c.so
}
