#!/usr/bin/env bash
# ./dev format        format all sources
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

require check
sources | xargs -0 clang-format -i
