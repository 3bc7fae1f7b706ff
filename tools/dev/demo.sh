#!/usr/bin/env bash
# ./dev demo          build, then train LeNet on MNIST with 2 ranks (arguments go to the example)
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

require build
build release mnist tutti-run tutti_backend_plugins
build/release/tools/tutti-run -np 2 build/release/examples/mnist "$@"
