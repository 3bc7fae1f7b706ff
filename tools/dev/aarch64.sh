#!/usr/bin/env bash
# ./dev aarch64 [RE]  cross-compile for aarch64 with Debian's compiler and run the tests of arithmetic,
#                     schedules and shared memory under qemu-user; an expression picks some of them.
#                     TUTTI_DEBIAN_MIRROR names another mirror than deb.debian.org
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# -le 1 ]] || fail "aarch64 takes one expression, for the names of tests, or nothing, and was given: $*"

# Unpacks the packages for aarch64 that the library and its tests need. Installs nothing. The C
# library's headers are the cross compiler's own.
unpack_debian() {
  local folder=build/aarch64 package as_root=()
  [[ ! -e $folder/root.complete ]] || return 0
  [[ $EUID -eq 0 ]] || as_root=(sudo)
  rm -rf "$folder/root" && mkdir -p "$folder/root"
  [[ ! -e $folder/first ]] || "${as_root[@]}" rm -rf --one-file-system "$folder/first"
  echo "dev: loading Debian's packages for aarch64"
  "${as_root[@]}" debootstrap --arch=arm64 --foreign --variant=minbase \
    --include=libfmt-dev,libssl-dev,libxxhash-dev,libhwy-dev,libgtest-dev,libgmock-dev,libboost-dev,zlib1g-dev,libcli11-dev,nlohmann-json3-dev,libdlpack-dev,librandom123-dev \
    bookworm "$folder/first" "$DEBIAN_MIRROR" >"$folder/debootstrap.log" 2>&1 ||
    fail "debootstrap got no Debian for arm64 (see $folder/debootstrap.log)"
  for package in "$folder"/first/var/cache/apt/archives/*.deb; do
    [[ $package == */libc6-dev_* || $package == */linux-libc-dev_* ]] ||
      dpkg-deb --fsys-tarfile "$package" | tar -x -C "$folder/root" --exclude='./dev/*' --exclude='./usr/share/[dlm]o*'
  done
  # Only packages for aarch64 are unpacked, so the headers that Debian keeps in a folder per
  # architecture are copied to the other headers.
  cp -a "$folder"/root/usr/include/aarch64-linux-gnu/. "$folder/root/usr/include"
  touch "$folder/root.complete"
}

# The tests in these folders start no other programs, because qemu runs only the first program.
folders=(tests/{base,kernels,tensor,collectives,adapters_c} tests/backends/{shared,stream,memory})
require build aarch64
unpack_debian
build aarch64 -DTUTTI_QUICK_BUILD=ON "${folders[@]/%//all}"
mkdir -p $reports
made=()
for folder in "${folders[@]}"; do
  report=$PWD/$reports/aarch64-${folder//\//-}.xml
  rm -f "$report"
  ctest --test-dir "build/aarch64/release/$folder" -j "$processors" --output-on-failure \
    -R "${1-.}" -LE '^(full|floors|unlike_qemu)$' --output-junit "$report" </dev/null || true
  made+=("$report")
done
summarize "${made[@]}"
