# Tests with another torch than Debian's; test_torch.sh and test_full.sh read this.

# Sets `python` to the Python of an environment with this version of torch, or the newest (""), and
# with the packages that its tests use. Version `debian` is Debian's torch, with the packages that
# torch's own tests use.
torch_environment() { # version
  local environment packages options=()
  environment=$PWD/build/torch/${1:-environment}
  packages=(numpy jax optax safetensors accelerate lightning expecttest mypy "torch${1:+==$1}")
  [[ $1 != debian ]] || packages=(expecttest) options=(--system-site-packages)
  [[ -x $environment/bin/pip ]] || "$machines_python" -m venv "${options[@]}" "$environment" ||
    fail "no environment could be made in $environment (Debian: python3-venv)"
  echo "dev: installing ${packages[*]} from PyPI"
  "$environment/bin/pip" install -q --disable-pip-version-check "${packages[@]}" ||
    fail "pip could not install into $environment"
  python=$environment/bin/python
}
torch_needs=(tutti_python tutti-run tutti_backend_plugins)

# These tests exist only if CMake gets such an environment.
run_torch() { # report version labels [settings of the build]
  torch_environment "$2"
  build release "${@:4}" "-DTUTTI_TORCH_ENVIRONMENT=$python" "${torch_needs[@]}" checkpoint_writer
  run_release "$1" -L "$3"
  cmake -DTUTTI_TORCH_ENVIRONMENT= build/release >/dev/null # ./dev test does not use it
}

# Runs torch's own tests of process groups, or those that a file names, over Tutti.
torch_suite() { # version ranks [--names file]
  torch_environment "$1"
  build release "${in_full[@]}" "${torch_needs[@]}"
  PYTHONPATH=$PWD/build/release/python "$python" tests/python/torch/suite/suite.py run --ranks "$2" \
    --results "$state/torch-suite-${1:-newest}.jsonl" "${@:3}"
}
