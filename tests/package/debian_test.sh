#!/usr/bin/env bash
# debian_test.sh SOURCE PACKAGES: installs the Debian packages of a folder (`./dev package` makes
# them) into a fresh Debian. There it builds and runs separate projects as an ordinary user, then
# upgrades and purges the packages. Needs root, debootstrap and Debian's mirror. TUTTI_DEBIAN_MIRROR
# names another mirror, which `./dev` passes as DEBIAN_MIRROR.
set -euo pipefail
source=$1 packages=$2
mirror=${DEBIAN_MIRROR-${TUTTI_DEBIAN_MIRROR-http://deb.debian.org/debian}}
unset TUTTI_DEBIAN_MIRROR
inside=$source/tests/package/debian_inside.sh

skip() {
  echo "debian test: skipped: $*"
  exit 77
}
[[ $EUID == 0 ]] || skip "a root of its own takes root to make"
export PATH=$PATH:/usr/sbin:/sbin
command -v debootstrap >/dev/null || skip "there is no debootstrap"
compgen -G "$packages/libtutti0*.deb" >/dev/null || skip "no packages in $packages; ./dev package makes them"
unshare --mount --pid --fork true 2>/dev/null || skip "no namespaces can be made here"

scratch=$(mktemp -d)
# Mounts inside the folder disappear with the namespace.
trap 'rm -rf --one-file-system "$scratch"' EXIT
root=$scratch/root

debootstrap --variant=minbase bookworm "$root" "$mirror" >"$scratch/log" 2>&1 || {
  tail -n 5 "$scratch/log"
  skip "debootstrap got no Debian from $mirror"
}
mkdir -p "$root/packages/later" "$root/packages/earlier" "$root/tests"
cp "$packages"/*.deb "$root/packages/later"
cp -r "$source"/tests/package/{consumer,c_consumer} "$inside" "$root/tests"
cp -r "$source/tests/adapters_torch/consumer" "$root/tests/torch_consumer"

# Makes the same packages with a lower version.
for package in "$root"/packages/later/*.deb; do
  dpkg-deb -R "$package" "$scratch/open"
  version=$(dpkg-deb -f "$package" Version)
  sed -i "s/^Version: .*/&~before/; s/(= $version)/(= $version~before)/g" "$scratch/open/DEBIAN/control"
  dpkg-deb --root-owner-group -b "$scratch/open" "$root/packages/earlier" >/dev/null
  rm -rf "$scratch/open"
done

# Uses a private PID namespace, /dev/shm and /run, where the adduser of a dependency leaves a lock.
unshare --mount --pid --fork bash -euo pipefail -c '
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount -t sysfs -o ro sysfs "$1/sys"
  mount -t tmpfs -o mode=755 tmpfs "$1/run"
  mkdir -p "$1/dev/shm"
  mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
    chroot "$1" bash /tests/debian_inside.sh
' - "$root"
