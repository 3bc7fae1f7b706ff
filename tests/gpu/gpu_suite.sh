#!/usr/bin/env bash
# The GPU suite on a machine that has a GPU but none of what Tutti is built with: `pack` collects the
# programs, plugins and shared libraries where they were built, `run` runs them where the GPU is.
set -euo pipefail

usage() {
  cat <<'END'
gpu_suite.sh pack [BUILD [FOLDER]]  collect from BUILD (build/release) into FOLDER (build/gpu)
gpu_suite.sh run [FOLDER]           run what lies in FOLDER (where this script is); fails if a
                                    case that needs a GPU was skipped
END
}

fail() {
  echo "gpu_suite: $*" >&2
  exit 1
}

# Test programs that use a GPU where there is one: as many of them as were built.
programs=(cuda_device_test cuda_pack_test core_gpu_staging_test core_gpu_processes_test
  nccl_gpu_test)

# The C library and its parts belong to the machine that runs.
is_system() { [[ $1 =~ ^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|librt\.|libpthread\.) ]]; }

pack() {
  local build=${1:-build/release} folder=${2:-build/gpu} program file name found=0
  rm -rf "$folder"
  mkdir -p "$folder/lib" "$folder/bin"
  for program in "${programs[@]}" tutti-doctor tutti-bench tutti-run; do
    while read -r file; do
      [[ ! -e $folder/bin/${file##*/} ]] || fail "$build holds two ${file##*/}; empty it and build"
      cp "$file" "$folder/bin/"
      found=1
    done < <(find "$build" -type f -name "$program" -perm -u+x -not -path '*/CMakeFiles/*')
  done
  [[ $found == 1 ]] || fail "no test program in $build; build it first (cmake --build $build)"
  for file in "$build"/libtutti_*.so; do cp -L "$file" "$folder/lib/"; done
  name=$(objdump -p "$build/libtutti.so" | awk '$1 == "SONAME" { print $2 }')
  cp -L "$build/everything/libtutti.so" "$folder/lib/$name" # the tests use what is no interface
  ln -s "$name" "$folder/lib/libtutti.so"
  [[ -f $folder/lib/libtutti_device_cuda.so ]] ||
    fail "$build has no libtutti_device_cuda.so; cmake's output says why (grep 'Device cuda')"
  while read -r name file; do
    is_system "$name" || [[ -e $folder/lib/$name ]] || cp -L "$file" "$folder/lib/$name"
  done < <(ldd "$folder"/bin/* "$folder"/lib/* 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u)
  find "$folder/bin" "$folder/lib" -type f -exec strip --strip-debug {} + 2>/dev/null || true
  cp "${BASH_SOURCE[0]}" "$folder/"
  echo "gpu_suite: $(du -sh "$folder" | cut -f1) in $folder; take it to the GPU and run" \
    "$(basename "${BASH_SOURCE[0]}") run there"
}

# NCCL as PyTorch brings it, if no other is in the loader's path.
torch_nccl() {
  python3 - 2>/dev/null <<'END' || true
import importlib.util, os
found = importlib.util.find_spec("nvidia.nccl")
print(os.path.join(list(found.submodule_search_locations)[0], "lib"))
END
}

run() {
  local folder=${1:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)} program log status=0
  [[ -d $folder/bin && -d $folder/lib ]] || fail "$folder holds no suite; make one with pack"
  folder=$(cd "$folder" && pwd)
  local nccl
  nccl=$(torch_nccl)
  export LD_LIBRARY_PATH=$folder/lib${nccl:+:$nccl}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  "$folder/bin/tutti-doctor" --no-measure || true
  log=$(mktemp)
  # shellcheck disable=SC2064 # now: the name is local
  trap "rm -f '$log'" EXIT
  for program in "$folder"/bin/*_test; do
    echo "== $(basename "$program")"
    timeout 540 "$program" --gtest_color=no 2>&1 | tee "$log" |
      grep -vE '^\[ RUN|^\[       OK|^\[---' || true
    if ! grep -q '^\[  PASSED  \]' "$log" || grep -qE '^\[  FAILED  \]' "$log"; then
      echo "gpu_suite: $(basename "$program") failed" >&2
      status=1
    fi
    if grep -qiE '^\[  SKIPPED \].*(/cuda|gpu)' "$log"; then
      echo "gpu_suite: cases of $(basename "$program") that need a GPU did not run" >&2
      status=1
    fi
  done
  return $status
}

case ${1:-} in
  pack | run) "$@" ;;
  *) usage && exit 2 ;;
esac
