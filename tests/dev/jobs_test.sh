#!/usr/bin/env bash
# ./dev knows its jobs: each has a script and a help text, wrong arguments are refused, and
# documents name existing jobs only.
. "$(dirname "${BASH_SOURCE[0]}")/scratch_tree.sh"

refused() { # text of the refusal, arguments of ./dev...
  ! ./dev "${@:2}" >"$scratch/output" 2>&1 || fail "./dev ${*:2} was not refused"
  grep -qF -- "$1" "$scratch/output" || fail "./dev ${*:2} said: $(cat "$scratch/output")"
  [[ $(wc -l <"$scratch/output") == 1 ]] || fail "more than a line for ./dev ${*:2}: $(cat "$scratch/output")"
}

! ./dev nonsense 2>"$scratch/output" || fail "nonsense is no job"
read -ra jobs < <(sed 's/.*there are: //; s/ (.*//' "$scratch/output")
[[ ${#jobs[@]} -gt 10 ]] || fail "it named no jobs: $(cat "$scratch/output")"
refused 'there is no job "nonsense"; there are: demo test sanitize' nonsense

./dev >"$scratch/usage"
./dev --help | diff "$scratch/usage" - || fail "--help says something else than ./dev alone"
for job in "${jobs[@]}"; do
  script=tools/dev/${job//-/_}.sh
  [[ -x $script ]] || fail "$job has no $script that can be run"
  [[ $job != bench ]] || continue # the driver of the benchmarks answers --help
  ./dev "$job" --help >"$scratch/help"
  grep -q "^[.]/dev $job " "$scratch/help" || fail "the help of $job does not begin with it: $(cat "$scratch/help")"
  [[ $(grep -cxFf "$scratch/help" "$scratch/usage") -ge $(wc -l <"$scratch/help") ]] ||
    fail "./dev --help lacks what ./dev $job --help says"
done
for script in tools/dev/*.sh; do
  name=$(basename "$script" .sh)
  [[ ! -x $script || " ${jobs[*]} " == *" ${name//_/-} "* ]] || fail "./dev does not list $script"
done

for job in sanitize summary build package wheel format abi docs check; do
  refused "$job takes no arguments, and was given: nonsense" "$job" nonsense
done
refused 'test takes --full, --torch, --torch --smoke or nothing, and was given: --nonsense' test --nonsense
refused 'and was given: --torch --nonsense' test --torch --nonsense
refused 'install takes the folder' install
refused 'fuzz takes a harness, all or list' fuzz
refused 'coverage takes one expression' coverage one two
refused 'aarch64 takes one expression' aarch64 one two

# Finds "./dev JOB" as documents and CI write it.
grep -ohE '(^|[^a-z])[.]/dev [a-z0-9-]+' "$root"/*.md "$root"/docs/*.md "$root"/.ci/run | sed 's/.* //' | sort -u >"$scratch/named"
[[ $(wc -l <"$scratch/named") -gt 10 ]] || fail "documents name no jobs"
while read -r job; do
  [[ " ${jobs[*]} alone lists " == *" $job "* ]] || fail "a document or CI names ./dev $job, which is no job"
done <"$scratch/named"
