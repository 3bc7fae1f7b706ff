#!/usr/bin/env bash
# tests/package/debian_test.sh runs this script inside the fresh Debian, as root.
set -euo pipefail
trap 'echo "debian test: failed at line $LINENO: $BASH_COMMAND" >&2' ERR

fail() {
  echo "debian test: $*" >&2
  exit 1
}
install() { apt-get -qq install -y --no-install-recommends "$@" >/tmp/apt.log 2>&1 ||
  { tail -n 20 /tmp/apt.log >&2 && fail "apt could not install $*"; }; }
as_user() { runuser -u tester -- env HOME=/home/tester "$@"; }
# Lists all files except those that apt and dpkg write for themselves.
tree() {
  find / -xdev \( -path /proc -o -path /packages -o -path /tests -o -path /tmp -o -path /home \
    -o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/log \) -prune -o -print | sort
}

apt-get -qq update
install g++ cmake make pkg-config libeigen3-dev libcli11-dev python3-numpy man-db
useradd -m tester
tree >/tmp/before

echo "--- the earlier version, with all that it depends on"
install /packages/earlier/*.deb
as_user tutti-run -np 2 python3 -c 'import tutti; tutti.Communicator.create().close()'

echo "--- the later version in its place"
names=$(for package in /packages/later/*.deb; do dpkg-deb -f "$package" Package; done)
# A plugin of another version must not be installable beside the library.
apt-get install -s /packages/later/libtutti0*-gloo_*.deb >/tmp/refusal 2>&1 &&
  fail "one plugin alone would be upgraded"
grep -q 'Depends: libtutti0.* (= ' /tmp/refusal || fail "$(cat /tmp/refusal)"
install /packages/later/*.deb
for name in $names; do
  [[ $(dpkg-query -W -f '${Version}' "$name") != *before ]] || fail "$name is not upgraded"
done

echo "--- an outside project of CMake"
as_user cmake -S /tests/consumer -B /tmp/consumer -DCMAKE_BUILD_TYPE=Release >/dev/null
as_user cmake --build /tmp/consumer
as_user tutti-run -np 2 /tmp/consumer/consumer
as_user tutti-run -np 2 /tmp/consumer/nn_consumer

if [[ $names == *libtutti-torch-dev* ]]; then
  echo "--- an outside project of LibTorch"
  as_user cmake -S /tests/torch_consumer -B /tmp/torch_consumer -DCMAKE_BUILD_TYPE=Debug >/dev/null
  as_user cmake --build /tmp/torch_consumer
  as_user tutti-run -np 2 /tmp/torch_consumer/torch_consumer
fi

echo "--- a C program by pkg-config"
read -ra flags < <(pkg-config --cflags --libs tutti)
[[ ${flags[*]} != *rpath* ]] || fail "a path that the loader knows is linked in: ${flags[*]}"
as_user cc -std=c11 /tests/c_consumer/c_consumer.c -o /tmp/c_consumer "${flags[@]}"
as_user tutti-run -np 2 /tmp/c_consumer

echo "--- the examples, as the packages have them"
examples=/usr/share/doc/tutti/examples
as_user cmake -S $examples -B /tmp/examples >/dev/null
as_user cmake --build /tmp/examples -j 2
for name in ten_lines custom_trainer c_trainer arrays_trainer overlap_trainer eigen_trainer; do
  as_user tutti-run -np 2 "/tmp/examples/$name"
done
as_user tutti-run -np 2 /tmp/examples/mnist --epochs 1 --quiet

echo "--- Python"
as_user tutti-run -np 2 python3 $examples/numpy_allreduce.py
as_user python3 -m tutti.run -np 2 python3 $examples/numpy_allreduce.py

echo "--- plugins and manual pages"
as_user tutti-doctor --no-measure >/tmp/doctor
for name in gloo ucx; do
  grep -q "/libtutti_backend_$name.so" /tmp/doctor || fail "no backend $name: $(cat /tmp/doctor)"
  as_user env TUTTI_BACKEND=$name tutti-run -np 2 /tmp/c_consumer
done
for tool in tutti-run tutti-doctor tutti-bench; do
  [[ $(man -w $tool) == /usr/share/man/man1/$tool.1.gz ]] || fail "no manual page of $tool"
done

echo "--- purged"
# Dependencies must be removed too, even if an older package suggests one of them (numpy suggests
# python3-dev).
# shellcheck disable=SC2086
apt-get -qq purge -y --auto-remove -o APT::AutoRemove::SuggestsImportant=false \
  -o APT::AutoRemove::RecommendsImportant=false $names >/tmp/apt.log 2>&1 || fail "$(tail -n 20 /tmp/apt.log)"
tree >/tmp/after
comm -13 /tmp/before /tmp/after | grep -v '^/etc/ld.so.cache$' >/tmp/left || true
[[ ! -s /tmp/left ]] || fail "purge leaves $(cat /tmp/left)"
# shellcheck disable=SC2086
dpkg-query -W $names >/tmp/left 2>/dev/null && fail "still known: $(cat /tmp/left)"
as_user /tmp/c_consumer 2>/tmp/refusal && fail "a program found a library that is gone"
grep -q 'libtutti.so.0' /tmp/refusal || fail "$(cat /tmp/refusal)"
