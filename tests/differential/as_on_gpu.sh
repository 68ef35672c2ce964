#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# What run.sh --gpu plays, on the simulated driver: the same with and without culimbo.  Virtual memory is among it, by
# the driver's own granularity, and DIFFERENTIAL_VIRTUAL=no leaves it out.
# Prints TAP.
set -u
# shellcheck source=tests/differential/common.sh
. "$(dirname "$0")/common.sh"

# Prints how often seed 4 calls $1 without culimbo; what follows are settings.
calls() {
	call=$1
	shift
	env "$@" CULIMBO_SIM_DIR="$tmp/sim" DIFFERENTIAL_GPU=1 DIFFERENTIAL_SIDE=bare DIFFERENTIAL_UNDERWAY="$tmp/at" \
		"$build/tools/culimbo" run --simulate --no-preload -- \
		"$build/tests/differential/differential" play 4 160 > "$tmp/out" 2>&1
	grep -c " $call(" "$tmp/out"
}

# shellcheck disable=SC2046 # words
"$here/run.sh" --as-on-gpu --brief "$build" $(seq 24) > "$tmp/out" 2>&1
ok $? "24 seeds are the same"
# the last once differed: the model did not know which of two contexts' opens a close in a third context ends
"$here/run.sh" --as-on-gpu --share-all --brief "$build" 1 2 3 4 5 6 7 8 1795888818036 > "$tmp/out" 2>&1
ok $? "9 seeds are the same but for what doc/differences.md lists, with CULIMBO_SHARE=all"
for call in cuMemAddressReserve 'cuMemCreate and cuMemMap' cuMemUnmap; do
	[ "$(calls "$call" CULIMBO_SHARE=all)" -gt 0 ]
	ok $? "$call is among the calls"
	[ "$(calls "$call" CULIMBO_SHARE=all DIFFERENTIAL_VIRTUAL=no)" -eq 0 ] && grep -q ' cuMemAlloc(' "$tmp/out"
	ok $? "DIFFERENTIAL_VIRTUAL=no leaves it out"
done
finish
