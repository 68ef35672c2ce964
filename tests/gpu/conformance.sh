#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The facts about the driver, of the simulated one: for `make check`.  The device is large
# because one of them is about 6 GiB; the simulated memory is what is touched.
set -u
unset LD_PRELOAD
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
build=${1:-${top_builddir:?}}
dir=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/culimbo-conformance.XXXXXX") ||
	exit 1
trap 'rm -rf "$dir"' EXIT
CULIMBO_SIM_DIR=$dir/sim CULIMBO_SIM_MEMORY=16GiB LD_LIBRARY_PATH=$build/tools/sim/.libs \
	"$build/tests/gpu/conformance"
