#!/usr/bin/env bash
# mnist_methods.sh RUN MNIST: `--method list` prints the methods, one per line. Each trains on 4
# ranks for an epoch and must recognize at least 85 % of the digits. An unknown name, or a momentum
# for AdamW, is refused in one line.
set -euo pipefail
run=$1 mnist=$2

fail() {
  echo "mnist methods: $*" >&2
  exit 1
}

mapfile -t methods < <("$mnist" --method list)
((${#methods[@]} >= 10)) || fail "--method list names ${#methods[@]} methods"
[[ $(printf '%s\n' "${methods[@]}" | sort -u | wc -l) == "${#methods[@]}" ]] || fail "a name comes twice"
for method in "${methods[@]}"; do
  [[ $method =~ ^[a-z-]+$ ]] || fail "\"$method\" is no name"
  output=$("$run" -np 4 "$mnist" --method "$method" --every 16 --epochs 1 --quiet)
  right=$(sed -n 's/^.*test accuracy \([0-9]*\)\..*/\1/p' <<<"$output")
  [[ -n $right ]] || fail "$method printed no accuracy: $output"
  echo "$method: $right %"
  ((right >= 85)) || fail "$method names only $right % of the digits rightly"
done
if output=$("$mnist" --method nothing 2>&1); then
  fail "a method of no name was taken"
fi
[[ $output == *"no --method nothing"* && $output != *$'\n'* ]] || fail "it said: $output"
if output=$("$mnist" --method diloco --momentum 0.9 2>&1); then
  fail "a momentum of AdamW was taken"
fi
[[ $output == *"add --optimizer sgd"* && $output != *$'\n'* ]] || fail "it said: $output"
