#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# fetch-runtimes.sh [BUILD_DIR]: downloads with pip what GPU machines may lack.
#
#  - CUDA runtimes of other versions.  The C++ client of tests/gpu is built with
#    each, shared and (where the wheel has it) static, into
#    BUILD_DIR/tests/gpu/runtimes.  run.sh finds it there.
#  - mpiexec, into BUILD_DIR/tests/gpu/mpi, for a machine that has only mpi4py.
#  - uthash.h, into BUILD_DIR/tests/gpu/include, for beside.sh.
#
# Needs pip and g++, but no nvcc and no GPU.  Copy the results to the GPU machine.
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
to=$(cd "${1:-build}" && pwd)/tests/gpu/runtimes
rm -rf "$to"
mkdir -p "$to/lib"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

# VERSION PACKAGE
while read -r version package; do
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--root-user-action=ignore --target "$wheels/$version" "$package" < /dev/null
	include=$(dirname "$(find "$wheels/$version" -name cuda_runtime_api.h)")
	lib=$(dirname "$(find "$wheels/$version" -name 'libcudart.so.*')")
	cp "$lib"/libcudart.so.* "$to/lib"
	mkdir "$to/lib/$version"
	mv "$to"/lib/libcudart.so.* "$to/lib/$version"
	g++ -O2 -std=c++17 -x c++ -isystem "$include" "$here/share.cu" -x none \
		"$to/lib/$version"/libcudart.so.* "-Wl,-rpath,\$ORIGIN/lib/$version" \
		-o "$to/share-$version-shared"
	if [ -e "$lib/libcudart_static.a" ]; then
		g++ -O2 -std=c++17 -x c++ -isystem "$include" "$here/share.cu" -x none \
			"$lib/libcudart_static.a" -ldl -lrt -lpthread -o "$to/share-$version-static"
	fi
done <<'END'
11.8 nvidia-cuda-runtime-cu11==11.8.89
12.1 nvidia-cuda-runtime-cu12==12.1.105
12.9 nvidia-cuda-runtime-cu12==12.9.79
13.0 nvidia-cuda-runtime==13.0.*
END
include=$(dirname "$to")/include
mkdir -p "$include"
echo '#include <uthash.h>' | gcc -E -xc - | sed -n 's/^# 1 "\(.*\/uthash\.h\)".*/\1/p' | head -n 1 |
	xargs -I{} cp {} "$include"
mpi=$(dirname "$to")/mpi
rm -rf "$mpi"
mkdir -p "$mpi/bin" "$mpi/lib"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	--root-user-action=ignore --prefix "$wheels/mpi" mpich < /dev/null
cp "$wheels"/mpi/bin/mpiexec "$wheels"/mpi/bin/hydra_pmi_proxy "$mpi/bin"
cp -R "$wheels/mpi/lib/libmpi.so.12" "$wheels/mpi/lib/mpich" "$mpi/lib"
find "$mpi" -type f -name '*.so*' -exec strip {} +
ls -l "$to" "$mpi"/*
