#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds UCX with its tests, for ucx.sh, on a machine with a CUDA toolkit and no GPU:
#
#	bash tests/gpu/ucx_get.sh DIR UCX [CUDA]
#
# DIR is where UCX is installed, and DIR.build where it is built: what is in these two is removed first.  UCX is a checkout of its release from
# github.com/openucx/ucx, in which configure is made if it lacks it (autoconf, automake and libtool must be there).
# CUDA is the toolkit (/usr/local/cuda), whose nvcc must be able to compile for the GPU of compute capability 9.0
# (UCX_GENCODE).  NVML's header may be missing there: then pip fetches it.  A machine without a driver has no NVML and
# no libcuda: UCX is linked to stand-ins of them, which are not installed.
#
# On two processors it takes a quarter of an hour, most of it for the tests.
set -eu
usage='usage: ucx_get.sh DIR UCX [CUDA]'
to=${1:?$usage} ucx=${2:?$usage} cuda=${3:-/usr/local/cuda}
gencode=${UCX_GENCODE:--gencode=arch=compute_90,code=sm_90}
die()
{
	echo "ucx_get.sh: $*" >&2
	exit 1
}
[ -e "$ucx/autogen.sh" ] || [ -e "$ucx/configure" ] || die "$ucx is no checkout of UCX"
[ -x "$cuda/bin/nvcc" ] || die "there is no $cuda/bin/nvcc: without it UCX has 263 tests less"
ucx=$(realpath "$ucx") cuda=$(realpath "$cuda") to=$(realpath -m "$to")
for folder in "$ucx" "$cuda"; do
	case $folder/ in "$to"/* | "$to".build/*) die "$folder lies in $to or $to.build, which are removed" ;; esac
done
nvml=$cuda/include/nvml.h
if [ ! -e "$nvml" ]; then
	fetched=$(mktemp -d)
	trap 'rm -rf "$fetched"' EXIT
	python3 -m pip install --quiet --disable-pip-version-check --no-input --no-deps --root-user-action=ignore \
		--target "$fetched" nvidia-nvml-dev
	nvml=$(find "$fetched" -name nvml.h)
	[ -n "$nvml" ] || die "there is no nvml.h in $cuda/include, and pip has none"
fi
rm -rf "$to" "$to.build"
mkdir -p "$to" "$to.build/cuda/include" "$to.build/cuda/lib64" "$to.build/ucx"

# The toolkit, with what may be missing in it
ln -s "$cuda"/include/* "$to.build/cuda/include/"
ln -s "$cuda"/lib64/* "$to.build/cuda/lib64/"
[ -e "$to.build/cuda/include/nvml.h" ] || cp "$nvml" "$to.build/cuda/include/"
sed -n 's/.*\b\(nvml[A-Z][A-Za-z0-9_]*\) *(.*/void \1(void) {}/p' "$to.build/cuda/include/nvml.h" | sort -u >"$to.build/nvml.c"
gcc -w -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 "$to.build/nvml.c" -o "$to.build/cuda/lib64/libnvidia-ml.so"
ln -sf libnvidia-ml.so "$to.build/cuda/lib64/libnvidia-ml.so.1"
for name in libcuda.so libcuda.so.1; do
	[ -e "$to.build/cuda/lib64/$name" ] || ln -s "$cuda/lib64/stubs/libcuda.so" "$to.build/cuda/lib64/$name"
done

[ -x "$ucx/configure" ] || (cd "$ucx" && ./autogen.sh)
cd "$to.build/ucx"
"$ucx/contrib/configure-release" --prefix="$to" --with-cuda="$to.build/cuda" NVCC="$cuda/bin/nvcc" --with-nvcc-gencode="$gencode" \
	LDFLAGS="-L$to.build/cuda/lib64 -Wl,-rpath-link,$to.build/cuda/lib64" \
	--enable-gtest --enable-mt --without-verbs --without-rdmacm --without-java --without-go --disable-static
make -j"$(nproc)"
make install
# gtest itself is not installed by make
make -C test/gtest/common/googletest
make -j"$(nproc)" -C test/gtest gtest
./libtool --mode=install install test/gtest/gtest "$to/bin/gtest"
# what a machine without the toolkit lacks
for name in libcudart.so libgomp.so.1; do
	file=$(gcc -print-file-name="$name")
	[ "$file" != "$name" ] || file=$(readlink -f "$cuda/lib64/$name")
	[ ! -e "$file" ] || cp -L "$file" "$to/lib/$(objdump -p "$file" | awk '$1 == "SONAME" { print $2 }')"
done
