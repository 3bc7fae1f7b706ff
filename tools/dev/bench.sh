#!/usr/bin/env bash
# ./dev bench         measure beside MPI, Gloo and torch, within 60 minutes; run it again to go on
# ./dev bench --quick the same within 5 minutes, with fewer sizes and rounds (--help tells more)
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

for argument in "$@"; do
  case $argument in
    --help | -h | --list) exec python3 benchmarks/run.py "$argument" ;;
  esac
done
require_all build
# If a library to compare with cannot be installed, the results name it.
(require bench) || echo "dev: going on with the peers that are there" >&2
settings=(-DTUTTI_BENCHMARKS=ON)
is_there libtorch-dev header torch/version.h && settings+=(-DTUTTI_TORCH=ON)
build release "${settings[@]}" benchmarks
python3 benchmarks/run.py "$@"
