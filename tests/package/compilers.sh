#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests both compilers; prints TAP.  gcc and clang each build everything without a warning (and without
# debug data: they take time, and nothing here needs them).  A compiler that has made all of this build is not run again.
# With each build the demo prints the right result, and the hooks can be patched.  gcc uses
# this build's CUDA headers.  clang uses the oldest ones in the package registry (11.8), or
# this build's if the registry can't be reached; the test's line says which.
set -u
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

# Sets $cuda to CUDA 11.8's headers if they can be fetched.
find_oldest_headers() {
	python3 -m pip download -q --no-input --no-deps --only-binary :all: \
		--disable-pip-version-check --timeout 30 --retries 1 -d "$tmp/wheel" \
		nvidia-cuda-runtime-cu11==11.8.89 > "$tmp/pip.log" 2>&1 < /dev/null &&
		python3 -m zipfile -e "$tmp"/wheel/*.whl "$tmp/wheel" || return
	found=$(find "$tmp/wheel" -name cudaTypedefs.h | head -n 1)
	[ -z "$found" ] || cuda=$(dirname "$(dirname "$found")")
}

# Prints the CUDA release of the headers in $cuda.
release() {
	sed -n 's/^#define CUDA_VERSION \([0-9]*\)$/\1/p' "$cuda/include/cuda.h" |
		awk '{ printf "%d.%d", $1 / 1000, $1 % 1000 / 10 }'
}

# Is all of this build by the compiler $1, and did it not warn?  (make.log: bootstrap, make_all)
this_build_is_of() {
	grep -q "^CC = $1\( \|\$\)" "$top_builddir/Makefile" && grep -qx 'CFLAGS = -g -O2' "$top_builddir/Makefile" &&
		[ -e "$top_builddir/make.log" ] && ! grep -q 'warning:' "$top_builddir/make.log" &&
		[ -z "$(cd "$top_builddir" && find preload shim tools -name '*.o' ! -name '*tests_*' -newer make.log)" ]
}

build() { # COMPILER
	tree=$tmp/$1
	mkdir "$tree"
	if this_build_is_of "$1"; then
		tree=$top_builddir
	else (
		cd "$tree" && unset MAKEFLAGS MFLAGS MAKELEVEL CFLAGS CPPFLAGS LDFLAGS &&
			"$top_srcdir/configure" -q CC="$1" CFLAGS=-O2 --with-cuda="$cuda" --enable-werror &&
			make -s -j"$(nproc 2> /dev/null || echo 2)" all
	) > "$tmp/$1.log" 2>&1 < /dev/null; fi
	ok $? "$1 builds it with CUDA $(release)'s headers, and without a warning" || {
		grep -E -A 5 'error|warning' "$tmp/$1.log" > "$tmp/$1.said"
		show "$tmp/$1.said"
		return
	}
	# (the program comes from this build)
	CULIMBO_DIR=$tmp/$1.limbo CULIMBO_SIM_DIR=$tmp/$1.sim "$tree/tools/culimbo" run --simulate -- \
		"$top_builddir/tests/e2e/demo" > "$tmp/$1.out" 2>&1 < /dev/null &&
		grep -q '^right' "$tmp/$1.out"
	ok $? "the demo is right with what $1 built" || show "$tmp/$1.out"
	# (the decoder comes from this build)
	sh "$top_srcdir/tests/patch/decode.sh" "$tree" "$top_builddir/tests/patch/decode" > "$tmp/$1.out" 2>&1
	ok $? "what a program gets of it can be patched" || show "$tmp/$1.out"
}

for compiler in gcc clang; do
	cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")
	if ! command -v $compiler > /dev/null; then
		number=$((number + 1))
		echo "ok $number # SKIP there is no $compiler here"
		continue
	fi
	[ $compiler != clang ] || find_oldest_headers
	build $compiler
done
finish
