#!/usr/bin/env bash
# Trains 25 steps on 2 ranks over each backend and compares the models. With determinism=rank_order
# all models are equal. With determinism=run, a second run over the same backend gives an equal
# model.
set -euo pipefail
run=$1 mnist=$2
backends=("${@:3}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

train() { # backend, determinism, file
  TUTTI_BACKEND=$1 TUTTI_DETERMINISM=$2 "$run" -np 2 "$mnist" --epochs 1 --until=1 --quiet --save "$3"
  [[ -s $(echo "$3"/step-*/manifest.json) ]]
}

same() { diff -r --exclude=.lock "$1" "$2"; }

for backend in "${backends[@]}"; do
  train "$backend" rank_order "$scratch/$backend"
  same "$scratch/${backends[0]}" "$scratch/$backend"
done
last=${backends[-1]}
train "$last" run "$scratch/first"
train "$last" run "$scratch/second"
same "$scratch/first" "$scratch/second"
