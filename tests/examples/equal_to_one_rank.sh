#!/usr/bin/env bash
# Runs a trainer that prints its weights on 2 ranks, each with half the batch, and on one rank with
# the whole batch. The weights must be equal except for rounding.
#   equal_to_one_rank.sh LAUNCHER PROGRAM RELATIVE-ERROR
set -euo pipefail
run=$1 program=$2 bound=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$program" >"$scratch/one"
"$run" -np 2 --no-prefix "$program" >"$scratch/two"
paste "$scratch/one" "$scratch/two" | awk -v bound="$bound" '
  function size(x) { return x < 0 ? -x : x }
  NF != 2 { print "line " NR ": a number is missing: " $0; bad = 1; next }
  $1 !~ /^-?[0-9]/ || $2 !~ /^-?[0-9]/ { print "line " NR ": no number: " $0; bad = 1; next }
  {
    if (size($1) > largest) largest = size($1)
    if (size($1 - $2) > worst) worst = size($1 - $2)
  }
  END {
    if (NR < 8 || largest == 0) { print NR " weights, the largest " largest; bad = 1 }
    if (worst > bound * largest) bad = 1
    print NR " weights differ by at most " worst ", the largest is " largest
    exit bad
  }'
