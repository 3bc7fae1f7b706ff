#!/usr/bin/env bash
# Runs `./dev check` in a scratch repository, with programs that replace the compiler's tools and
# log their calls. Parts that passed must not run again for the same commit, and clang-tidy must
# check changed sources only.
. "$(dirname "${BASH_SOURCE[0]}")/scratch_tree.sh"
mkdir -p adapters/c build/release && cp "$root"/adapters/c/tutti.h adapters/c
for source in one two three; do
  echo "// $source" >$source.cc
  echo "\"file\": \"$scratch/tree/$source.cc\"" >>build/release/compile_commands.json
done
echo '// settings' >.clang-tidy
echo '// in all' >all.h

stand_in ccache ':'
stand_in ninja '
for source in one two three; do
  printf "$source.o: #deps 2, deps mtime 1 (VALID)\n    ../../$source.cc\n    ../../all.h\n\n"
done'
stand_in doxygen ':'
stand_in abidw ':'
stand_in abidiff ':'
stand_in clang-format 'echo format >>"$log"'
# Fails for sources that contain "bad".
stand_in clang-tidy 'echo "tidy ${*: -1}" >>"$log"; ! grep -q bad "${*: -1}"'
stand_in ctest '
while [[ $# -gt 0 ]]; do
  [[ $1 == --test-dir ]] && preset=${2##*/}
  [[ $1 == -I ]] && part=$2
  [[ $1 == --output-junit ]] && report=$2
  [[ $1 == -R && $2 == "^(T)\$" ]] && again=" again"
  shift
done
echo "ctest $preset ${part-}${again-}" >>"$log"
status=run
scratch=$(dirname "$log")
[[ $preset == asan+ubsan && ${part-}${again-} == @(3,*| again) && -e $scratch/stop ]] && status=fail
[[ $preset == asan+ubsan && ${part-} == 3,* && -e $scratch/flake ]] && status=fail
printf "<testcase name=\"T\" status=\"%s\">\n</testcase>\n" $status >"$report"'
export CI=
git init -q .
commit() { git add -A && git -c user.name=t -c user.email=t@t commit -qm "$1"; }
commit first

check() { # the expected lines of the log
  : >"$scratch/log"
  ./dev check >"$scratch/output" 2>&1 && code=0 || code=$?
  diff <(sort "$scratch/log") <(printf '%s\n' "$@" | sed '/^$/d' | sort) ||
    fail "it did not run the above; it said: $(cat "$scratch/output")"
}
sanitized=()
for part in 1 2 3 4 5 6; do
  sanitized+=("ctest asan+ubsan $part,,6" "ctest tsan $part,,6")
done

# A source that clang-tidy refuses ends the run. Sources that passed are not checked again.
echo '// bad' >two.cc
commit bad
check format 'ctest release ' "${sanitized[@]}" 'tidy one.cc' 'tidy two.cc' 'tidy three.cc'
[[ $code != 0 ]] || fail "a source that clang-tidy refuses passed"
check 'tidy two.cc'
grep -q 'tidy failed' "$scratch/output" || fail "$(cat "$scratch/output")"

# A new commit starts over, except for unchanged sources. A test that fails in one part does not
# stop the other parts.
echo '// good' >two.cc
commit good
touch "$scratch/stop"
again='ctest asan+ubsan  again'
check format 'ctest release ' "${sanitized[@]}" "$again" 'tidy two.cc'
[[ $code != 0 ]] || fail "a test that failed passed"
grep -q '^failed: T' "$scratch/output" || fail "$(cat "$scratch/output")"
grep -q '^failed twice: T' "$scratch/output" || fail "$(cat "$scratch/output")"
rm "$scratch/stop"

# A test that fails and then passes alone is reported as flaky.
touch "$scratch/flake"
check 'ctest asan+ubsan 3,,6' "$again"
[[ $code == 0 ]] || fail "all has passed: $(cat "$scratch/output")"
grep -q '^flaky: T (not in tests/flaky.txt)' "$scratch/output" || fail "$(cat "$scratch/output")"
rm "$scratch/flake"
check ''
[[ $code == 0 ]] || fail "nothing was left to do: $(cat "$scratch/output")"

# A changed header counts as a change of every source that includes it.
echo '// other' >all.h
commit header
check format 'ctest release ' "${sanitized[@]}" 'tidy one.cc' 'tidy two.cc' 'tidy three.cc'

# Results belong to a commit.
echo '// more' >two.cc
check ''
grep -q 'commit first' "$scratch/output" || fail "$(cat "$scratch/output")"

summarized() { # CI's variable, reports...
  awk -v in_ci="${1:+1}" -f cmake/junit.awk -f cmake/summarize_tests.awk \
    tests/flaky.txt tests/skips.txt "${@:2}" >"$scratch/output"
}

# A test that fails and then passes alone is not a failure. In CI, tests/flaky.txt must name it.
cat >"$scratch/flakes.xml" <<'END'
<testcase name="F" status="fail">
</testcase>
END
sed 's/fail/run/' "$scratch/flakes.xml" >"$scratch/flakes.again.xml"
flakes=("$scratch/flakes.xml" "$scratch/flakes.again.xml")
summarized '' "${flakes[@]}" || fail "$(cat "$scratch/output")"
! summarized true "${flakes[@]}" || fail "a flake that is not listed passed in CI"
echo 'F.* | why' >>tests/flaky.txt
summarized true "${flakes[@]}" || fail "a flake that is listed failed in CI: $(cat "$scratch/output")"
grep -q '^flaky: F (listed)' "$scratch/output" || fail "$(cat "$scratch/output")"
grep -q '^0 passed, 0 failed, 1 flaky, 0 skipped' "$scratch/output" || fail "$(cat "$scratch/output")"

# A skipped test counts as passed. In CI, tests/skips.txt must name it and its reason.
skipped() { summarized "$1" "$scratch/skips.xml"; }
cat >"$scratch/skips.xml" <<'END'
<testcase name="P" status="run">
</testcase>
<testcase name="S" status="notrun">
<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
s.cc:1: Skipped
there is no such thing
</testcase>
END
echo '# none' >tests/skips.txt
skipped '' || fail "$(cat "$scratch/output")"
! skipped true || fail "a skip that is not listed passed in CI"
echo 'S | no such other thing | why' >>tests/skips.txt
! skipped true || fail "a skip for another reason passed in CI"
echo 'S | no such thing | why' >>tests/skips.txt
skipped true || fail "a skip that is listed failed in CI: $(cat "$scratch/output")"
