#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Collects what pool_clients.sh runs into a folder and an archive, for a machine that cannot
# reach a registry.
#
#	bash tests/gpu/pool_clients_get.sh DIR [CUDA_PYTHON [SAMPLE]]
#
# DIR (created anew) and DIR.tar.xz get the wheels, fetched by pip, without the parts that no
# client needs.  They are for the Python version POOL_PYTHON (3.12).  numpy and libnvrtc are too
# big to carry; a machine with PyTorch has them.  CUDA_PYTHON is a git repository of
# github.com/NVIDIA/cuda-python; cuda.core's tests/memory_ipc is taken from the commit from which
# the wheel was built.  SAMPLE is the built streamOrderedAllocationIPC of cuda-samples.  Without
# these two arguments both are left out, and pool_clients.sh skips them.
set -eu
usage='usage: pool_clients_get.sh DIR [CUDA_PYTHON [SAMPLE]]'
to=${1:?$usage} repository=${2-} sample=${3-}
python=${POOL_PYTHON:-3.12}
rm -rf "$to"
mkdir -p "$to/site"
to=$(cd "$to" && pwd)
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do
	platforms+=(--platform "${platform}_$(uname -m)")
done
wanted=(
	cuda-core==1.1.0 cuda-bindings==13.0.3 cuda-pathfinder==1.9.0
	pytest==9.2.0 pluggy==1.7.0 iniconfig==2.3.1 packaging==26.3 pygments==2.21.0
	pytest-timeout==2.4.0 psutil==7.2.2
	rmm-cu13==26.10.0 librmm-cu13==26.10.0 rapids-logger==0.3.0
)
# one call: with --target a second call would replace the folder "cuda" of the first
python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: \
	--no-compile --root-user-action=ignore --python-version "$python" --implementation cp \
	"${platforms[@]}" --target "$to/site" "${wanted[@]}"
printf '%s\n' "for Python $python" "${wanted[@]}" >"$to/versions"

# remove what no client loads: headers, files for CUDA 12, debug data
rm -rf "$to/site/cuda/core/cu12" "$to/site/librmm/include" "$to/site/librmm/lib64/cmake" \
	"$to/site/librmm/lib64/rapids" "$to/site/rapids_logger/include" "$to/site/bin"
find "$to/site" \( -name '*.pxd' -o -name '*.pyx' -o -name '*.pyi' -o -name '*.a' \
	-o -name 'include' -o -name '*.hpp' \) -prune -exec rm -rf {} +
find "$to/site" -type f -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true

if [ -n "$repository" ]; then
	commit=$(sed -n "s/^__commit_id__ = commit_id = 'g\\(.*\\)'/\\1/p" \
		"$to/site/cuda/core/_version.py")
	mkdir "$to/cuda_python"
	git -C "$repository" archive "$commit" cuda_core/pytest.ini cuda_core/tests/conftest.py \
		cuda_core/tests/helpers cuda_core/tests/memory_ipc cuda_python_test_helpers >"$wheels/suite.tar"
	tar -xf "$wheels/suite.tar" -C "$to/cuda_python"
	echo "cuda-python's tests: $commit" >>"$to/versions"
fi
if [ -n "$sample" ]; then
	mkdir "$to/bin"
	cp "$sample" "$to/bin/streamOrderedAllocationIPC"
fi
tar -C "$(dirname "$to")" -cf - "$(basename "$to")" | xz -T0 -6 >"$to.tar.xz"
cat "$to/versions"
du -sh "$to/site"/* | sort -h | tail -n 5
ls -l "$to.tar.xz"
