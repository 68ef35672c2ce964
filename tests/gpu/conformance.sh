#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the conformance program on the simulated driver, for `make check`.  The device is large because
# fact 16 needs 6 GiB.  The simulated driver allocates only memory that is touched.
set -u
unset LD_PRELOAD
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
build=${1:-${top_builddir:?}}
dir=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/culimbo-conformance.XXXXXX") ||
	exit 1
trap 'rm -rf "$dir"' EXIT
CULIMBO_SIM_DIR=$dir/sim CULIMBO_SIM_MEMORY=16GiB CULIMBO_SIM_DEVICES=2 CULIMBO_SIM_POOL_ACCESS=set \
	LD_LIBRARY_PATH=$build/tools/sim/.libs \
	"$build/tests/gpu/conformance"
