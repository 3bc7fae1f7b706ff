#!/usr/bin/env bash
# ./dev install DIR   build them and install them into DIR, which may be moved
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# == 1 && -n $1 ]] || fail "install takes the folder to install into, as in ./dev install ~/tutti"

prefix=$1
[[ $prefix == /* ]] || prefix=$called_from/$prefix
./dev build
cmake --install build/release --prefix "$prefix" >build/install.log ||
  fail "cmake could not install into $prefix (see build/install.log)"
libraries=$prefix/$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' build/release/CMakeCache.txt)
python_packages=$prefix/lib/python3/dist-packages
cat <<END_OF_TEXT
dev: installed into $prefix. In the shell where it is used:
  export PATH=$prefix/bin:\$PATH PKG_CONFIG_PATH=$libraries/pkgconfig
END_OF_TEXT
[[ ! -d $python_packages ]] || echo "  export PYTHONPATH=$python_packages"
echo "or for CMake: -DCMAKE_PREFIX_PATH=$prefix"
