#!/usr/bin/env bash
# ./dev planted       plant bugs in a copy, one by one, and see the tests notice each; a NAME: one
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

require_all build test
tests/planted/run.sh "$@"
