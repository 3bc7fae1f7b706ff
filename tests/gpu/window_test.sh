#!/usr/bin/env bash
# Runs a window of gpu-test with imitations of our programs: one succeeds, one fails, one hangs,
# others are missing. The window must end in time and report each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
fail() {
  echo "window_test: $*" >&2
  cat "$scratch/said" >&2
  exit 1
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch RESULTS=$scratch/results.jsonl WINDOW_SECONDS=30
mkdir -p "$scratch/inside/bin" "$scratch/inside/lib" "$scratch/gpu"
program() { # name, behaviour
  printf '#!/bin/sh\n%s\n' "$2" >"$scratch/inside/bin/$1"
  chmod +x "$scratch/inside/bin/$1"
}
program tutti-doctor 'echo "cuda        driver 13.0, runtime 13.0"'
program cuda_device_test 'echo "[  FAILED  ] one \"case\" of them"; exit 1'
program tutti-bench 'echo "12 GB/s"'
program peer_gpu_test 'echo "half of it"; sleep 100; echo "never"'
echo abcdef >"$scratch/inside/commit"
tar -C "$scratch/inside" -czf "$scratch/gpu/programs.tar.gz" .
cp gpu_test.sh "$scratch/gpu/gpu-test"

code=0 begun=$SECONDS
"$scratch/gpu/gpu-test" runs >"$scratch/said" 2>&1 || code=$?
[[ $code != 0 ]] || fail "a window in which a step failed succeeded"
[[ $((SECONDS - begun)) -le 90 ]] || fail "it took $((SECONDS - begun)) s"
expect() { # step, status
  grep -q "\"step\": \"$1\", \"status\": \"$2\", .*\"commit\": \"abcdef\"" "$RESULTS" ||
    fail "no result says that \"$1\" is $2: $(<"$RESULTS")"
  grep -qE "^$1 +$2 " "$scratch/said" || fail "the table does not say that \"$1\" is $2"
}
command -v nvidia-smi >/dev/null || expect "GPU, driver, topology" skipped
expect "tutti-doctor" passed
expect "device runtime" failed
expect "copy, pack, unpack of resnet50" passed
expect "peer: threads share the GPU" killed
expect "nccl: one rank" skipped
[[ $(sed -n '/^runs at abcdef/,$p' "$scratch/said" | wc -l) -le 40 ]] || fail "the table is too long"
! grep -q never "$RESULTS" || fail "what hung was waited for"
if command -v python3 >/dev/null; then
  python3 -c 'import json, sys; [json.loads(line)["seconds"] for line in sys.stdin]' <"$RESULTS" ||
    fail "a line of the results is no JSON"
fi

# Results are added to earlier ones. If nothing is packed, the result is one line.
before=$(wc -l <"$RESULTS")
WINDOW_SECONDS=1 "$scratch/gpu/gpu-test" runs >"$scratch/said" 2>&1 || true
[[ $(wc -l <"$RESULTS") -gt $before ]] || fail "results of before are gone"
rm "$scratch/gpu/programs.tar.gz"
! "$scratch/gpu/gpu-test" right >"$scratch/said" 2>&1 || fail "there was nothing to run"
[[ $(<"$scratch/said") == *"nothing is packed"* ]] || fail "it did not say that nothing is packed"
