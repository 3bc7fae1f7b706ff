#!/usr/bin/env bash
# ./dev package       Debian packages of all that is installed, into build/package/packages
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

require_all build package
# Packages for LibTorch are made if there is a LibTorch.
libtorch=-DTUTTI_TORCH=OFF
is_there libtorch-dev header torch/version.h && libtorch=-DTUTTI_TORCH=ON
build package "$libtorch"
rm -rf build/package/packages
(cd build/package && cpack) >build/package/cpack.log 2>&1 ||
  fail "cpack failed: $(tail -n 5 build/package/cpack.log)"
rm -rf build/package/packages/_CPack_Packages
# Debian's checker must find nothing beyond what cmake/debian lists.
lintian --fail-on warning build/package/packages/*.deb || fail "lintian has found the above"
ls build/package/packages/*.deb
