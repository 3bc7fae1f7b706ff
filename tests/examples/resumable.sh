#!/usr/bin/env bash
# resumable.sh RUN TRAINER: a training that is stopped and continued with other numbers of ranks
# must end with the result of one that was never stopped.
set -euo pipefail
run=$1 trainer=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "resumable: $*" >&2
  exit 1
}

whole=$("$run" -np 2 "$trainer" "$folder/whole" 300 2>/dev/null)
"$run" -np 3 "$trainer" "$folder/parts" 95 2>/dev/null | grep -q " steps 0 to 95 on 3 ranks" || fail "no first part"
"$run" -np 1 "$trainer" "$folder/parts" 182 2>/dev/null | grep -q " steps 90 to 182 on 1 ranks" || fail "no second part"
parts=$("$run" -np 4 "$trainer" "$folder/parts" 300 2>/dev/null)
[[ $parts == *" steps 180 to 300 on 4 ranks: "* ]] || fail "the last part said: $parts"
[[ ${parts#*ranks: } == "${whole#*ranks: }" ]] || fail "expected ${whole#*ranks: }, got ${parts#*ranks: }"
# Every checkpoint that exists is complete; two are kept.
[[ $(cd "$folder/parts" && echo step-*) == "step-290 step-300" ]] || fail "other checkpoints: $(ls "$folder/parts")"
if output=$("$trainer" "$folder/whole/step-300/rank-00000.safetensors/x" 10 2>&1); then fail "it wrote into a file"; fi
[[ $output == *"cannot make "* ]] || fail "it said: $output"
echo "$parts"
