#!/usr/bin/env bash
# run.sh [NAME...]: shows that the tests notice bugs. Each line of list.txt names a patch, which
# plants a bug or undoes a repair, and the tests that must notice it. The patch lies here in the
# folder of the floor or room it changes (of two: the upper). It goes into a copy of the tree under
# build/planted, never into the tree itself; there the tests must pass before and fail after.
# Without a name: all of them, but for those that have been noticed in this very tree already, so
# that a run that was stopped goes on where it was. Ends with a table.
#
# run.sh --applies: only that list and patches belong together and that each patch fits the tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=tests/planted

fail() {
  echo "planted: $*" >&2
  exit 1
}

# The table: name | build (a preset) | targets | tests (a regular expression of ctest) | what it is.
declare -A patch_of build_of targets_of tests_of what_of
names=()
read_list() {
  local name build targets tests what patch
  while read -r patch; do
    name=$(basename "$patch" .patch)
    [[ -z ${patch_of[$name]-} ]] || fail "$patch has the name of ${patch_of[$name]}"
    patch_of[$name]=$patch
  done < <(find "$here" -name '*.patch')
  while IFS='|' read -r name build targets tests what; do
    read -r name <<<"$name"
    [[ -n $name && $name != \#* ]] || continue
    read -r build <<<"$build"
    read -r tests <<<"$tests"
    [[ -n ${what// /} ]] || fail "list.txt: the line of $name has fewer than five columns"
    [[ -z ${build_of[$name]-} ]] || fail "list.txt names $name twice"
    [[ -s ${patch_of[$name]-} ]] || fail "list.txt names $name, but there is no $name.patch in $here"
    names+=("$name")
    build_of[$name]=$build targets_of[$name]=$targets tests_of[$name]=$tests what_of[$name]=$what
  done <"$here/list.txt"
  for name in "${!patch_of[@]}"; do
    [[ -n ${build_of[$name]-} ]] || fail "list.txt has no line for ${patch_of[$name]}"
  done
}

read_list
if [[ ${1-} == --applies ]]; then
  for name in "${names[@]}"; do
    git apply --check "${patch_of[$name]}" || fail "$name does not apply"
  done
  exit 0
fi

git_dir=$(git rev-parse --absolute-git-dir)
state=$PWD/build/planted
copy=$state/tree
in_copy() { # git command: with the copy as its tree, and an index of its own
  (cd "$copy" && GIT_INDEX_FILE=$state/copy.index git --git-dir="$git_dir" --work-tree="$copy" "$@")
}

# What is in the tree now, committed or not, as an object of git.
snapshot() {
  cp "$git_dir/index" "$state/snapshot.index"
  GIT_INDEX_FILE=$state/snapshot.index git add -A .
  GIT_INDEX_FILE=$state/snapshot.index git write-tree
}

# Touches only what differs, so that builds in the copy stay incremental.
restore_copy() {
  in_copy read-tree --reset -u "$tree"
  in_copy checkout-index --all --force --index
}

log=
build() { # preset targets
  local preset=$1 launcher=() torch=OFF
  [[ " ${*:2}" != *" torch_"* ]] || torch=ON
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  (cd "$copy" && cmake --preset "$preset" -DTUTTI_QUICK_BUILD=OFF -DTUTTI_TORCH=$torch "${launcher[@]}" &&
    cmake --build --preset "$preset" -j "$(nproc)" --target "${@:2}") >"$log" 2>&1
}

# Whether they pass in this time; red also if they hang.
pass() { # preset tests seconds
  local code=0
  PLANTED_BY=$$ timeout "$3" ctest --test-dir "$copy/build/$1" -R "$2" --no-tests=error \
    --stop-on-failure --output-on-failure >"$log" 2>&1 </dev/null 9>&- || code=$?
  [[ $code != 124 ]] || echo "no end after $3 s" >>"$log"
  end_what_is_left
  return $code
}

# A planted bug may leave processes behind, whatever their group, session and parent.
end_what_is_left() {
  local process
  for process in /proc/[0-9]*; do
    if grep -qszxF "PLANTED_BY=$$" "$process/environ"; then
      kill -KILL "${process#/proc/}" 2>/dev/null || true
    fi
  done
}

# The first thing that a failed test complained of.
complaint() {
  { grep -m1 -E ': Failure$' -A3 "$log" || grep -m1 -E 'fake NCCL:|terminate called|ERROR: ' "$log" ||
    grep -m1 -E '\*\*\*|^no end after' "$log" || echo "ctest failed"; } | tr -s ' \n' ' ' | cut -c1-110
}

# Plants one and prints the verdict, which begins with "red" if all is well.
plant() { # name
  local name=$1 preset=${build_of[$1]} tests=${tests_of[$1]} targets begin
  read -ra targets <<<"${targets_of[$name]}"
  log=$state/$name.log
  restore_copy
  if ! build "$preset" "${targets[@]}"; then
    echo "UNPATCHED DOES NOT BUILD: see $log"
    return
  fi
  begin=$SECONDS
  if ! pass "$preset" "$tests" 400; then
    echo "RED WITHOUT THE PATCH: $(complaint)"
    return
  fi
  local seconds=$((SECONDS - begin))
  if ! in_copy apply "$PWD/${patch_of[$name]}" >"$log" 2>&1; then
    echo "DOES NOT APPLY: $(head -n1 "$log")"
    return
  fi
  if ! build "$preset" "${targets[@]}"; then
    echo "DOES NOT COMPILE: $(grep -m1 -E 'error:|FAILED' "$log" | cut -c1-110)"
    return
  fi
  # The tests' own deadlines are for slow machines: what hangs is seen sooner.
  if pass "$preset" "$tests" $((30 + 10 * seconds)); then
    echo "GREEN, but should be red"
  else
    echo "red: $(complaint)"
  fi
}

chosen=("$@")
for name in "${chosen[@]}"; do
  [[ -n ${build_of[$name]-} ]] || fail "nothing is called $name; there are: ${names[*]}"
done

mkdir -p "$copy"
exec 9>"$state/lock"
flock -n 9 || fail "another run has $state"
tree=$(snapshot)
results=$state/results/$tree
mkdir -p "$results"

for name in "${names[@]}"; do
  if [[ ${#chosen[@]} -gt 0 ]]; then
    [[ " ${chosen[*]} " == *" $name "* ]] || continue
  elif [[ -s $results/$name ]] && grep -q '^red' "$results/$name"; then
    continue
  fi
  echo "planted: $name:${what_of[$name]}"
  verdict=$(plant "$name")
  echo "  $verdict"
  echo "$verdict" >"$results/$name"
done
restore_copy

failures=0
echo
for name in "${names[@]}"; do
  [[ ${#chosen[@]} -eq 0 || " ${chosen[*]} " == *" $name "* ]] || continue
  verdict=$(<"$results/$name")
  printf '%-34s %s\n' "$name" "$verdict"
  [[ $verdict == red* ]] || failures=$((failures + 1))
done
((failures == 0)) || fail "$failures of these were not noticed as they should"
