#!/usr/bin/env bash
# ./dev fuzz NAME [S] fuzz a parser (or `all`) by libFuzzer for S seconds; `list` names the parsers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# -ge 1 && $# -le 2 && ${2-60} =~ ^[1-9][0-9]*$ ]] ||
  fail "fuzz takes a harness, all or list, and seconds, and was given: ${*:-nothing}"

# Runs a harness of tests/fuzz for `seconds`. The inputs that it finds stay in build/fuzz/corpus.
fuzz_one() { # name seconds
  local name=$1 seconds=$2 folder=build/fuzz/corpus/$1
  local log=$folder.log program=(build/fuzz/tests/fuzz/fuzz_parsers --harness="$1")
  mkdir -p "$folder" "$folder.seeds"
  "${program[@]}" --seeds="$folder.seeds" 2>"$log" || { cat "$log" >&2 && return 1; }
  if ! "${program[@]}" -max_total_time="$seconds" -timeout=10 -malloc_limit_mb=256 -print_final_stats=1 \
    -artifact_prefix="$folder." "$folder" "$folder.seeds" >"$log" 2>&1; then
    tail -n 50 "$log" >&2
    echo "dev: $name: a finding, or nothing was taken or refused: see $log" >&2
    return 1
  fi
  awk -v name="$name" -v seconds="$seconds" '
    /\tDONE/ { for (i = 1; i < NF; ++i) { if ($i == "cov:") edges = $(i + 1)
                                          if ($i == "corp:") split($(i + 1), corpus, "/") } }
    /stat::number_of_executed_units/ { runs = $2 }
    /^inputs: / { accepted = $2; refused = $4 }
    END { printf "%-16s %5d s %9d executions (%d accepted, %d refused), %d edges, corpus of %d\n",
                 name, seconds, runs, accepted, refused, edges, corpus[1] }' "$log"
}

# Each harness is a source that registers itself.
mapfile -t names < <(grep -l '^const Registered registered_' tests/fuzz/*/*.cc | sed 's|.*/||; s|[.]cc$||')
case $1 in
  list) printf '%s\n' "${names[@]}" && exit ;;
  all) ;;
  *)
    [[ " ${names[*]} " == *" $1 "* ]] || fail "no harness is called $1; there are: ${names[*]}"
    names=("$1")
    ;;
esac
require build fuzz
build fuzz -DTUTTI_QUICK_BUILD=ON fuzz_parsers
findings=
for name in "${names[@]}"; do fuzz_one "$name" "${2-60}" || findings+=" $name"; done
[[ -z $findings ]] || fail "findings:$findings"
