#!/usr/bin/env bash
# versions_test.sh SOURCES CMAKE: configures the adapter beside LibTorch packages that contain
# nothing but a version. Unknown versions are refused in one line.
set -euo pipefail
sources=$1 cmake=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/fake/cmake" "$scratch/project"
cat >"$scratch/fake/cmake/TorchConfig.cmake" <<END
set(TORCH_LIBRARIES torch)
set(TORCH_INSTALL_PREFIX $scratch/fake)
set(TORCH_LIBRARY $scratch/fake/lib/libtorch.so)
END
cat >"$scratch/project/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(refusal LANGUAGES NONE)
# CMake reaches this call only if the version was accepted.
function(add_library)
  message(FATAL_ERROR "taken")
endfunction()
add_subdirectory($sources/adapters/torch torch)
END

expect() { # version words
  echo "set(PACKAGE_VERSION $1)" >"$scratch/fake/cmake/TorchConfigVersion.cmake"
  rm -rf "$scratch/build"
  "$cmake" -S "$scratch/project" -B "$scratch/build" -DTorch_DIR="$scratch/fake/cmake" \
    >"$scratch/said" 2>&1 && { echo "version $1: nothing was said" >&2; exit 1; }
  tr -s ' \n' ' ' <"$scratch/said" | grep "$2" >/dev/null || {
    echo "version $1: not \"$2\" but:" >&2
    cat "$scratch/said" >&2
    exit 1
  }
}
for version in 1.12.1 2.0.1 2.6.0; do
  expect "$version" "LibTorch $version was found; expected 1.13 (Debian's) or 2.7 and later"
done
for version in 1.13.0 1.13.1 2.7.0 2.15.0; do
  expect "$version" "taken"
done
# The headers of one LibTorch beside the library of another one.
sed -i 's|TORCH_LIBRARY .*|TORCH_LIBRARY /usr/lib/libtorch.so)|' "$scratch/fake/cmake/TorchConfig.cmake"
expect 2.15.0 "in $scratch/fake, but a library found is /usr/lib/libtorch.so, of another one; configure"
sed -i 's|TORCH_LIBRAR.*|TORCH_LIBRARIES torch /usr/lib/libc10.so)|' "$scratch/fake/cmake/TorchConfig.cmake"
expect 2.15.0 "in $scratch/fake, but a library found is /usr/lib/libc10.so, of another one; configure"
rm -r "$scratch/fake"
sed -i "/^project/a set(CMAKE_DISABLE_FIND_PACKAGE_Torch ON)" "$scratch/project/CMakeLists.txt"
rm -rf "$scratch/build"
if "$cmake" -S "$scratch/project" -B "$scratch/build" >"$scratch/said" 2>&1; then exit 1; fi
tr -s ' \n' ' ' <"$scratch/said" | grep "LibTorch was not found; install libtorch-dev, or point" >/dev/null
