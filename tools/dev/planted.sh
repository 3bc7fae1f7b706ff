#!/usr/bin/env bash
# ./dev planted       plant bugs in a copy of the tree, one by one, and check that tests notice each;
#                     with a NAME, only that bug
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

require_all build test
tests/planted/run.sh "$@"
