#!/usr/bin/env bash
# Runs Tutti's tests on a machine with a GPU that has none of Tutti's build tools. `pack` collects
# the programs, plugins and shared libraries on the machine that built them. The windows run on the
# GPU machine, each within nine minutes. Every step has its own time limit, its result is
# immediately appended to one file of JSON lines, and a table comes last.
set -uo pipefail

usage() {
  cat <<'END'
gpu-test pack [BUILD [FOLDER]]  collect from BUILD (build/release) into FOLDER (build/gpu)
gpu-test runs                   is it there, how fast is it, does everything start
gpu-test right                  all tests, also under compute-sanitizer, and trainers to their accuracy
gpu-test fast                   benches, beside PyTorch where it is
Results are appended to RESULTS (gpu-results.jsonl); a table ends each window.
END
}

fail() {
  echo "gpu-test: $*" >&2
  exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
results=${RESULTS:-gpu-results.jsonl}
window_seconds=${WINDOW_SECONDS:-530}

# --- pack ----------------------------------------------------------------------------------------

# The C library and its parts come from the machine that runs the programs. CUDA's libraries come
# from the driver or from PyTorch.
is_taken_along() {
  [[ ! $1 =~ ^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|librt\.|libpthread\.) &&
    ! $1 =~ ^lib(cuda|cudart|cudnn|cublas|nccl|nvrtc|nvidia) ]]
}

pack() {
  local build=${1:-build/release} folder=${2:-build/gpu} source=$here/../.. inside name file
  [[ -f $build/libtutti_device_cuda.so ]] ||
    fail "$build has no libtutti_device_cuda.so; build with nvcc in the path (cmake's output says why not: grep 'Device cuda')"
  rm -rf "$folder"
  inside=$folder/programs
  mkdir -p "$inside/lib" "$inside/bin" "$inside/share"
  # CMake lists the programs of this build (CMakeLists.txt here).
  while read -r file; do
    cp "$file" "$inside/bin/" || fail "build it first (cmake --build $build --target gpu_programs)"
  done <"$build/gpu_programs.txt"
  while read -r file; do
    cp -L "$file" "$inside/lib/" || fail "build it first (cmake --build $build --target gpu_programs)"
  done <"$build/gpu_plugins.txt"
  while read -r name file; do
    ! is_taken_along "$name" || [[ -e $inside/lib/$name ]] || cp -L "$file" "$inside/lib/$name"
  done < <(ldd "$inside"/bin/* "$inside"/lib/* 2>/dev/null |
    awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u)
  # Plugins are searched beside the library, under the name that the programs were linked with.
  name=$(objdump -p "$build/libtutti.so" | awk '$1 == "SONAME" { print $2 }')
  cp -L "$build/everything/libtutti.so" "$inside/lib/$name" # the tests use internal functions
  ln -sf "$name" "$inside/lib/libtutti.so"
  find "$inside/bin" "$inside/lib" -type f -exec strip --strip-debug {} + 2>/dev/null || true
  cp -rL "$source/examples/data/mnist" "$inside/share/" || fail "there are no digits to train with"
  cp "$source/LICENSE" "$inside/share/text"
  cp "$source/benchmarks/peers/gpu.py" "$inside/share/pytorch.py"
  # The Python package if it is built, with its checks for torch's tensors.
  if [[ -f $build/python/tutti/_native.abi3.so ]]; then
    mkdir -p "$inside/python"
    cp -rL "$build/python/tutti" "$inside/python/" && rm -rf "$inside"/python/tutti/{bin,__pycache__}
    cp "$source"/tests/python/torch/{gpu,ranks,training}.py "$inside/python/"
  fi
  git -C "$source" describe --always --dirty >"$inside/commit" 2>/dev/null || echo unknown >"$inside/commit"
  # The CPU's layers are large (oneDNN) and shrink to a quarter.
  tar -C "$inside" -czf "$folder/programs.tar.gz" . || fail "cannot write $folder/programs.tar.gz"
  rm -rf "$inside"
  cp "${BASH_SOURCE[0]}" "$folder/gpu-test"
  local megabytes
  megabytes=$(du -sm "$folder" | cut -f1)
  [[ $megabytes -lt 50 ]] || fail "$folder has $megabytes MB, which is too much to take along"
  echo "gpu-test: $megabytes MB in $folder; take it to the GPU, and there: gpu-test runs"
}

# --- windows -------------------------------------------------------------------------------------

# Unpacks the programs, once.
unpack() {
  local archive=$here/programs.tar.gz
  [[ -f $archive ]] || archive=$here/../../build/gpu/programs.tar.gz
  [[ -f $archive ]] || fail "nothing is packed; ./dev gpu-test pack, where it was built"
  local mark
  mark=$(cksum <"$archive" | tr ' ' '-')
  root=${TMPDIR:-/tmp}/tutti-gpu-$UID-$mark
  if [[ ! -f $root/commit ]]; then
    rm -rf "$root.new" && mkdir -p "$root.new"
    tar -C "$root.new" -xzf "$archive" || fail "cannot unpack $archive into $root"
    # Python must use its own versions of these common libraries.
    cp -r "$root.new/lib" "$root.new/python-lib"
    rm -f "$root.new"/python-lib/lib{stdc++,gcc_s,gomp,z,crypto,numa}.so*
    rm -rf "$root" && mv "$root.new" "$root"
  fi
  local nccl
  # NCCL, cuDNN and cuBLASLt of PyTorch, unless others are in the loader's path.
  nccl=$(python3 - 2>/dev/null <<'END'
import importlib.util, os
folders = []
for name in ("nvidia.nccl", "nvidia.cudnn", "nvidia.cublas", "nvidia.cu13"):
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        continue
    folders += [os.path.join(list(found.submodule_search_locations)[0], "lib")] if found else []
print(":".join(folders))
END
  )
  export LD_LIBRARY_PATH=$root/lib${nccl:+:$nccl}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PATH=$root/bin:$PATH
}

# Prints the end of the input as a JSON string.
json_text() {
  printf '"'
  tail -c 4000 | iconv -c -f UTF-8 -t UTF-8 | tr '\t\r' '  ' | LC_ALL=C tr -d '\000-\011\013-\037\177' |
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' | awk '{ printf "%s%s", between, $0; between = "\\n" }'
  printf '"'
}

seconds_since() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'; }

# note STEP STATUS SECONDS WHY OUTPUT-FILE
note() {
  local why text='""'
  why=$(printf '%s' "$4" | json_text)
  [[ -z ${5-} ]] || text=$(json_text <"$5")
  printf '{"window": "%s", "step": "%s", "status": "%s", "seconds": %s, "commit": "%s", "why": %s, "output": %s}\n' \
    "$window" "$1" "$2" "$3" "$commit" "$why" "$text" >>"$results"
  table+=("$(printf '%-34s %-8s %7ss  %.60s' "$1" "$2" "$3" "$4")")
  [[ $2 == passed || $2 == skipped ]] || status=1
}

# step NAME SECONDS COMMAND...: runs the command; the last line of its output is shown in the table.
step() {
  local name=$1 limit=$2 left log began code last
  shift 2
  left=$((window_seconds - SECONDS))
  if [[ $left -lt 5 ]]; then
    note "$name" skipped 0 "the window is over"
    return
  fi
  [[ $limit -le $left ]] || limit=$left
  log=$(mktemp)
  began=$(date +%s.%N)
  echo "== $name"
  timeout --kill-after=5 "$limit" bash -c '"$@"' step "$@" >"$log" 2>&1
  code=$?
  grep -vE '^\[ RUN|^\[       OK|^\[---|^$' "$log" | tail -n 5 | cut -c1-160
  last=$(grep -vE '^ *$' "$log" | tail -n 1)
  if [[ $code == 124 || $code == 137 ]]; then
    note "$name" killed "$(seconds_since "$began")" "after ${limit}s; $last" "$log"
  elif [[ $code != 0 ]] || grep -q '^\[  FAILED  \]' "$log"; then
    note "$name" failed "$(seconds_since "$began")" "$last" "$log"
  elif grep -qE '^\[  SKIPPED \]' "$log" && ! grep -qE '^\[       OK \]' "$log"; then
    note "$name" skipped "$(seconds_since "$began")" "$(grep -iE 'no gpu|no backend|is not|needs' "$log" | head -n 1)" "$log"
  else
    note "$name" passed "$(seconds_since "$began")" "$last" "$log"
  fi
  rm -f "$log"
}

# have NAME WHAT: notes a skipped step if a program or module is missing.
have() {
  if command -v "$2" >/dev/null; then return 0; fi
  note "$1" skipped 0 "$2 is not here"
  return 1
}
have_torch() {
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then return 0; fi
  note "$1" skipped 0 "PyTorch with CUDA is not here"
  return 1
}

gpu_facts() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total,pcie.link.gen.current,mig.mode.current --format=csv
  nvidia-smi topo -m
  pgrep -a nvidia-cuda-mps || echo "no MPS daemon"
  nproc
  uname -r
}

# reaches_97 TRAINER...: succeeds if the trainer prints an accuracy of at least 97.
reaches_97() {
  local said accuracy
  said=$("$@" 2>&1) || { printf '%s\n' "$said"; return 1; }
  printf '%s\n' "$said"
  # tutti-run puts the rank in front of each line.
  accuracy=$(sed 's/^\[[0-9]*\] *//' <<<"$said" | awk '/^test accuracy/ { print $3 }')
  echo "test accuracy ${accuracy:-not told}, 97 is wanted"
  awk -v a="${accuracy:-0}" 'BEGIN { exit !(a >= 97) }'
}

export -f gpu_facts reaches_97

runs() {
  have "GPU, driver, topology" nvidia-smi && step "GPU, driver, topology" 20 gpu_facts
  step "tutti-doctor" 30 tutti-doctor --no-measure
  step "device runtime" 60 cuda_device_test --gtest_color=no
  step "launch, hand-over, host copy" 40 tutti-bench bare_device -n 1
  step "copy, pack, unpack of resnet50" 60 tutti-bench device -n 1 --set resnet50
  step "peer: threads share the GPU" 90 peer_gpu_test --gtest_color=no --gtest_filter='*Threads*'
  step "staging: threads" 60 core_gpu_staging_test --gtest_color=no
  step "matmul" 60 matmul --device cuda --size 4096
  step "nccl: one rank" 60 nccl_gpu_test --gtest_color=no --gtest_filter='*OneRank*'
  # Steps that may hang come last, each in its own process.
  step "peer: processes share the GPU" 90 peer_gpu_test --gtest_color=no --gtest_filter='*Processes*'
  step "staging: processes" 60 core_gpu_processes_test --gtest_color=no
  step "nccl: two ranks by host ids" 60 nccl_gpu_test --gtest_color=no --gtest_filter='*HostIds*'
}

right() {
  local tool layers='LayerKernels.*:GpuSteps.*:Attention.E*:Attention.C*:Embedding.T*:Norms.B*:Norms.L*'
  step "device runtime" 60 cuda_device_test --gtest_color=no
  step "pack, as the host computes it" 60 cuda_pack_test --gtest_color=no
  step "reduce, as the host computes it" 60 cuda_reduce_test --gtest_color=no
  have "layers, as the host computes them" gpu_layers_test &&
    step "layers, as the host computes them" 120 gpu_layers_test --gtest_color=no \
      --gtest_filter="$layers"
  step "flag protocol on threads" 60 flag_test --gtest_color=no --gtest_filter=-Full/*
  step "peer" 120 peer_gpu_test --gtest_color=no
  step "staging: threads" 60 core_gpu_staging_test --gtest_color=no
  step "staging: processes" 60 core_gpu_processes_test --gtest_color=no
  step "nccl" 90 nccl_gpu_test --gtest_color=no
  for tool in memcheck racecheck; do
    have "$tool: device runtime" compute-sanitizer || continue
    # One case allocates too much memory on purpose.
    step "$tool: device runtime" 90 compute-sanitizer --tool "$tool" --error-exitcode 1 \
      --report-api-errors no cuda_device_test --gtest_color=no
    step "$tool: peer, threads" 90 compute-sanitizer --tool "$tool" --error-exitcode 1 \
      --report-api-errors no peer_gpu_test --gtest_color=no --gtest_filter='*Threads*'
  done
  local dtype
  for dtype in f32 bf16 f16; do
    step "mnist in $dtype, 1 rank" 60 reaches_97 mnist --device cuda --dtype "$dtype" --quiet \
      --data "$root/share/mnist"
  done
  step "flag kernels" 60 flags_gpu_test --gtest_color=no
  # Each runs in its own process, because streams of many communicators may share one hardware
  # queue.
  step "persistent allreduces, graphs" 90 persistent_gpu_test --gtest_color=no --gtest_filter=-*NotCome
  step "a rank that does not come" 60 persistent_gpu_test --gtest_color=no --gtest_filter=*NotCome
  have "a trainer as one graph" graph_trainer && step "a trainer as one graph" 60 graph_trainer 4
  if [[ ! -d $root/python ]]; then
    note "torch's tensors" skipped 0 "the Python package is not packed"
  elif have_torch "torch's tensors"; then
    step "torch's tensors" 70 env PYTHONPATH="$root/python" tutti-run -np 2 \
      env LD_LIBRARY_PATH="$root/python-lib" python3 "$root/python/gpu.py"
  fi
  step "training" 120 env MNIST="$root/share/mnist" gpu_training_test --gtest_color=no
  step "mnist, 2 ranks on one GPU" 60 reaches_97 tutti-run -np 2 mnist --device cuda --quiet \
    --data "$root/share/mnist"
  have "memcheck: layers" compute-sanitizer && have "memcheck: layers" gpu_layers_test &&
    step "memcheck: layers" 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
      --report-api-errors no gpu_layers_test --gtest_color=no --gtest_filter="$layers"
}

fast() {
  local set ranks
  for set in resnet50 gpt2 small1000; do
    step "pack, unpack: $set" 60 tutti-bench device -n 1 --set "$set"
  done
  step "allreduce of threads" 60 tutti-bench shared_device -n 1
  step "matmul" 60 matmul --device cuda --size 8192 --dtype bf16
  step "resnet_synthetic in bf16" 90 resnet_synthetic --device cuda --dtype bf16 --batch 64
  step "gpt2 124M in bf16" 90 gpt2 --device cuda --dtype bf16 --model 124M --batch 16 \
    --text "$root/share/text"
  for ranks in 2 4 8 16; do
    [[ $ranks -le $(nproc) ]] || {
      note "allreduce of $ranks CPU ranks" skipped 0 "$(nproc) cores"
      continue
    }
    step "allreduce of $ranks CPU ranks" 60 tutti-run -np "$ranks" tutti-bench allreduce --pin
  done
  have_torch "PyTorch beside it" && step "PyTorch beside it" 120 python3 "$root/share/pytorch.py"
  have_torch "PyTorch compiled" && step "PyTorch compiled" 200 python3 "$root/share/pytorch.py" --compile
}

run_window() {
  window=$1 status=0 table=()
  unpack
  commit=$(<"$root/commit")
  local said
  said=$(timeout 60 tutti-doctor --no-measure 2>&1) || said="cuda: tutti-doctor does not start: $said"
  said=$(grep -m 1 '^cuda' <<<"$said")
  if [[ $said != *"driver "*"runtime "* ]]; then
    fail "$said"
  fi
  "$window"
  printf '%s\n' "" "$window at $commit: $SECONDS s, results in $results" "${table[@]}" | head -n 40
  return "$status"
}

case ${1:-} in
  pack) pack "${@:2}" ;;
  runs | right | fast) run_window "$1" ;;
  *) usage && exit 2 ;;
esac
