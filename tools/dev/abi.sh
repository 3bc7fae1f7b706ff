#!/usr/bin/env bash
# ./dev abi           record the description of the C interface (cmake/abi) again, at a release
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

require build abi
describe_abi cmake/abi/c.abi
