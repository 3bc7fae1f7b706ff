#!/usr/bin/env bash
# Installs to a scratch prefix, moves it, builds a separate CMake project and a C program against
# it, and runs both on 2 ranks.
set -euo pipefail
build=$1 libdir=$2 cxx=$3 cc=$4
python=${5-} # set if the Python package is built and numpy is available
public_headers=$(dirname "${BASH_SOURCE[0]}")/../../cmake/public_headers.txt
readme=$(dirname "${BASH_SOURCE[0]}")/../../README.md
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "package test: $*" >&2
  exit 1
}

cmake --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved

# No installed file may name the build folder, and the library must not link optional libraries.
grep -rIl "$build" "$prefix" && fail "the files above name the build folder"
grep -rIl "$scratch/first" "$prefix" && fail "the files above name the first prefix"
ldd "$prefix/$libdir/libtutti.so" | grep -E 'gloo|ucp|ucs|uct|nccl|cuda|dnnl|gomp' &&
  fail "the core library links the above"

# The installed headers must be those of the list, each at the path that programs include, except
# headers of a target that is not built.
sed -nE 's#^core/(tutti[.]h)$#tutti/\1#p; s#^adapters/c/(tutti[.]h)$#\1#p
  s#^adapters/nn/(nn[.]h) tutti_nn$#tutti/\1 tutti_nn#p; t; s#^[a-z]#tutti/&#p' "$public_headers" |
  while read -r header target; do
    [[ -n $target && ! -e $prefix/$libdir/lib$target.so ]] || echo "$header"
  done | sort >"$scratch/listed"
(cd "$prefix/include" && find . -type f -printf '%P\n') | sort >"$scratch/laid"
diff "$scratch/listed" "$scratch/laid" ||
  fail "the installed headers (>) are not those of cmake/public_headers.txt (<)"

# Programs do not start if a symbol is missing.
export LD_BIND_NOW=1

echo "--- what the library exports"
nm -DC --defined-only "$prefix/$libdir/libtutti.so" | sed -E 's/^[0-9a-f]+ . //' >"$scratch/exported"
grep -vE '^tutti_|^tutti::|^(vtable|typeinfo|typeinfo name) for tutti::' "$scratch/exported" &&
  fail "the library exports the above"
grep -E '^tutti_[a-z_]+$' "$scratch/exported" | sort >"$scratch/exported_c"
grep -oE '^static inline .*\btutti_[a-z_]+\(' "$prefix/include/tutti.h" |
  grep -oE 'tutti_[a-z_]+\($' | tr -d '(' >"$scratch/inline_c"
sed -E 's|/\*.*||' "$prefix/include/tutti.h" | grep -oE '\btutti_[a-z_]+\(' | tr -d '(' | sort -u |
  grep -vxFf "$scratch/inline_c" >"$scratch/declared_c"
diff "$scratch/declared_c" "$scratch/exported_c" ||
  fail "<tutti.h> declares what the library does not export, or the other way round"

echo "--- find_package"
cmake -S "$here/consumer" -B "$scratch/consumer" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$scratch/consumer"
"$prefix/bin/tutti-run" -np 2 "$scratch/consumer/consumer"
if [[ -e $scratch/consumer/nn_consumer ]]; then
  "$prefix/bin/tutti-run" -np 2 "$scratch/consumer/nn_consumer"
fi

echo "--- tutti::c, for a project of C and for C++14"
cmake -S "$here/c_consumer" -B "$scratch/c" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" >/dev/null
cmake --build "$scratch/c"
"$prefix/bin/tutti-run" -np 2 "$scratch/c/c_consumer"
"$prefix/bin/tutti-run" -np 2 "$scratch/c/cpp14/cpp14_consumer"

echo "--- plugins lie in a folder of this version"
for file in "$build"/libtutti_backend_*.so; do
  [[ -e $file ]] || continue # no plugin is built
  name=$(sed 's/.*libtutti_backend_//; s/[.]so$//' <<<"$file")
  "$prefix/bin/tutti-doctor" --no-measure --json --backend "$name" >"$scratch/plugin.json" || true
  grep -Eq "\"file\": \"$prefix/$libdir/tutti-[0-9.]+/libtutti_backend_$name.so\"" "$scratch/plugin.json" ||
    fail "plugin $name is not found where it was installed: $(cat "$scratch/plugin.json")"
done

echo "--- manual pages tell every option"
if command -v help2man >/dev/null; then
  for tool in tutti-run tutti-doctor; do
    manual=$(gzip -dc "$prefix/share/man/man1/$tool.1.gz" | sed 's/\\//g')
    for option in $("$prefix/bin/$tool" --help | grep -oE '^  .*--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
      [[ $manual == *"$option"* ]] || fail "the manual page of $tool does not tell $option"
    done
  done
  [[ $(gzip -dc "$prefix/share/man/man1/tutti-bench.1.gz") == *reduce_scatter* ]] ||
    fail "the manual page of tutti-bench names no cases"
fi

echo "--- pkg-config"
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
read -ra flags < <(pkg-config --cflags --libs tutti)
"$cc" -std=c11 -Wall -Wextra -pedantic -Werror "$here/c_consumer/c_consumer.c" \
  -o "$scratch/c_consumer" "${flags[@]}"
"$prefix/bin/tutti-run" -np 2 "$scratch/c_consumer"

echo "--- what the README says to type"
# The README starts in a clone and installs to ~/tutti; both are prepared here.
mkdir "$scratch/home"
ln -s "$prefix" "$scratch/home/tutti"
sed -n '/^## Use it/,/^## /{s/^    //p}' "$readme" | grep -v '^./dev install ~/tutti' >"$scratch/typed"
[[ -n $python ]] || sed -i /python/Id "$scratch/typed"
grep -q pkg-config "$scratch/typed" || fail "the README no longer says how to use pkg-config"
(
  unset PKG_CONFIG_PATH
  export HOME=$scratch/home
  mkdir -p "$scratch/clone/build"
  ln -s "$here/../../examples" "$scratch/clone/examples"
  cd "$scratch/clone" && bash -euxo pipefail "$scratch/typed"
)

if [[ -n $python ]]; then
  echo "--- Python"
  export PYTHONPATH=$prefix/lib/python3/dist-packages
  "$python" -m tutti.run -np 2 "$python" "$prefix/share/doc/tutti/examples/numpy_allreduce.py"
  unset PYTHONPATH
fi

echo "--- every header that is installed, in one program"
for header in $(grep -v torch "$scratch/laid"); do echo "#include <$header>"; done >"$scratch/all.cc"
"$cxx" -std=c++20 -fsyntax-only -I"$prefix/include" "$scratch/all.cc" ||
  fail "the headers above need what is not installed"

echo "--- an older C++"
"$cxx" -std=c++17 -c "$here/../../examples/ten_lines.cc" -o /dev/null "${flags[@]}" \
  2>"$scratch/refusal" && fail "C++17 was compiled"
grep -q 'error: #error "Tutti needs C++20: compile with -std=c++20' "$scratch/refusal" ||
  fail "$(cat "$scratch/refusal")"
[[ $(grep -c 'error:' "$scratch/refusal") -le 2 ]] || fail "$(cat "$scratch/refusal")"

echo "--- documents and examples are there and build"
test -s "$prefix/share/doc/tutti/README.md" && test -s "$prefix/share/doc/tutti/docs/backends.md" ||
  fail "no documents in $prefix/share/doc/tutti"
cmake -S "$prefix/share/doc/tutti/examples" -B "$scratch/examples" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_COMPILER="$cc" >/dev/null
cmake --build "$scratch/examples" --target c_trainer
"$prefix/bin/tutti-run" -np 2 "$scratch/examples/c_trainer"

echo "--- a build of some targets can be installed"
cmake -S "$here/partly_built" -B "$scratch/partly" -DCMAKE_C_COMPILER="$cc" >/dev/null
cmake --build "$scratch/partly" --target first
cmake --install "$scratch/partly" --prefix "$scratch/partly_installed"
"$scratch/partly_installed/bin/second"

echo "--- a backend of somebody else's"
cmake -S "$here/../../examples/backend_plugin" -B "$scratch/plugin" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build "$scratch/plugin"
mkdir "$scratch/plugins"
mv "$scratch"/plugin/libtutti_backend_unix_socket.so "$scratch/plugins"
export TUTTI_BACKEND_PATH=$scratch/plugins
bench=("$prefix/bin/tutti-bench" allreduce --bytes 64K --backend unix_socket --repetitions 2 --json -)
"${bench[@]}" | tee "$scratch/row"
grep -q '"transport":"unix_socket"' "$scratch/row" || fail "the plugin did not run"
TUTTI_BACKEND=unix_socket "$prefix/bin/tutti-run" -np 2 "$scratch/c_consumer"
"$prefix/bin/tutti-doctor" --no-measure >"$scratch/before"
grep -q '^unix_socket 0' "$scratch/before" ||
  fail "tutti-doctor does not see the plugin"

# Without the plugin, nothing may change except that it cannot be chosen.
rm "$scratch/plugins/libtutti_backend_unix_socket.so"
"$prefix/bin/tutti-doctor" --no-measure >"$scratch/after"
diff "$scratch/before" "$scratch/after" | grep '^[<>]' >"$scratch/change" || true
grep -q '^< unix_socket ' "$scratch/change" && ! grep -q '^>' "$scratch/change" ||
  fail "more than the plugin is gone: $(cat "$scratch/change")"
"$prefix/bin/tutti-run" -np 2 "$scratch/c_consumer"
TUTTI_BACKEND=unix_socket "$prefix/bin/tutti-run" -np 2 "$scratch/c_consumer" 2>"$scratch/refusal" &&
  fail "a backend that is not there was used"
grep -q 'there is no backend "unix_socket"' "$scratch/refusal" || fail "$(cat "$scratch/refusal")"
