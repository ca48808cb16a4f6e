#!/bin/sh
# Downloads what oomscope needs beside torch, numpy, numba, pandas, click, rich, PyYAML, nvidia-ml-py and pytest, for a
# machine without a network (Linux, x86-64).
#
#     tests/gpu/wheels.sh [FOLDER] [PYTHON-VERSION...]
#
# FOLDER: gpu-wheels unless given, which git ignores; versions: 3.11 3.12 3.13. There, in the repository's root:
#
#     python3 -m pip install -q --no-index --no-deps --find-links gpu-wheels --target /tmp/site \
#         -c requirements.lock -r tests/gpu/wheels.txt && export PYTHONPATH=/tmp/site:$PWD
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/gpu-wheels}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- 3.11 3.12 3.13
mkdir -p "$folder"
for version in "$@"; do
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" \
        --implementation cp --python-version "$version" --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --platform manylinux1_x86_64 -c "$root/requirements.lock" -r "$root/tests/gpu/wheels.txt"
done
size=$(du -sm "$folder" | cut -f1)
echo "Wrote $folder: $(find "$folder" -name '*.whl' | wc -l) wheels, $size MiB"
[ "$size" -lt 64 ] || { echo "that is more than 64 MiB: name fewer versions of Python" >&2; exit 1; }
