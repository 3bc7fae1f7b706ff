#!/usr/bin/env bash
# ./dev build         build the libraries, tools and examples
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

require_all build
build release installed examples
