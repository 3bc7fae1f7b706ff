#!/usr/bin/env bash
# ./dev gpu-test pack make build/gpu, for a machine with a GPU on which Tutti cannot be built; on that
#                     machine run build/gpu/gpu-test with runs, right and fast
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ ${1-} == pack ]]; then
  require_all build test
  # The build is for the GPUs of that machine. A quick build would compile each kernel at its first
  # launch.
  build release -DCMAKE_CUDA_ARCHITECTURES="80-real;90" gpu_programs
fi
tests/gpu/gpu_test.sh "$@"
