# ./dev test --full; `test.sh` reads this.
. tools/dev/torch.sh

# Runs each fault 20 times, and the faults at random moments 100 times.
run_faults() { FAULT_RUNS=20 run_release "$1" -L '^faults$'; } # report

run_libtorch() { # report
  build asan+ubsan "${in_full[@]}" torch_training_test torch_functions_test torch_bad_input_test
  # Debian's LibTorch is built without sanitizers, so tsan would not see how LibTorch orders its
  # memory accesses.
  run_tests asan+ubsan "$1" -L '^libtorch$'
}

run_torches() {
  local version
  part torch-newest run_torch '' '^newest$' "${in_full[@]}"
  step torch-suite-newest torch_suite '' 8
  step torch-suite-debian torch_suite debian 4
  for version in 2.4 2.7 2.11; do
    part "torch-$version" run_torch "$version" '^newest_torch$' "${in_full[@]}"
    step "torch-suite-$version" torch_suite "$version" 4 --names tests/python/torch/suite/core.txt
  done
}

require_all build test
begin_parts full
look_for_libtorch
in_full=(-DTUTTI_FULL_TESTS=ON "$libtorch")
build release "${in_full[@]}"
part release run_release -LE '^full$'
part faults run_faults
(require package) || echo "dev: going on without the packages' tools" >&2
command -v lintian >/dev/null && step package ./dev package
while read -r name; do
  part "full-$name" run_release -R "^${name//./\\.}\$"
done < <(ctest --test-dir build/release -N -L '^full$' | sed -n 's/^ *Test *#[0-9]*: //p')
run_torches
[[ $libtorch != *=ON ]] || part libtorch run_libtorch
sanitizer_parts tsan run_tsan_in_full -DTUTTI_FULL_TESTS=ON -DTUTTI_TORCH=OFF
sanitizer_parts asan+ubsan run_asan_in_full -DTUTTI_FULL_TESTS=ON -DTUTTI_TORCH=OFF
for name in $(./dev fuzz list); do step "fuzz-$name" ./dev fuzz "$name" 20; done
./dev planted
echo "results of commit $commit:"
tabulate "$state"/{release,faults,full-*}.xml
summarize "$state"/*.xml
