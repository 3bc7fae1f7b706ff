#!/usr/bin/env bash
# ./dev docs          the reference of C++ and C, by Doxygen, into build/docs/html
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

require docs
reference || fail "a public symbol is not described, see above"
echo "dev: the reference is build/docs/html/index.html"
