#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The share cycle on this machine's GPU, bare and under culimbo by turns:
#
#	tests/gpu/share_cycle.sh BUILD_DIR [ROUNDS] [SECONDS]	(3 rounds of 0.6 s each setting: about 3 minutes)
#	tests/gpu/share_cycle.sh profile BUILD_DIR [ROUNDS] [SECONDS]	(which call costs what: under 1 minute)
#
# Prints a table and a line of TAP for each limit (tests/bench/share_cycle.py says
# which); exit status 1 when one is broken.  BUILD_DIR may have been built elsewhere: it
# needs .libs/libculimbo.so and tests/bench/share_cycle, and the machine needs python3.
# SHARE_CYCLE_JSON names a file for every figure of every run.
set -u
export LC_ALL=C
options=(--gpu)
if [ "${1-}" = profile ]; then
	options+=(--profile)
	shift
fi
if [ $# -lt 1 ] || [ $# -gt 3 ]; then
	echo "usage: share_cycle.sh [profile] BUILD_DIR [ROUNDS] [SECONDS]" >&2
	exit 2
fi
[ -z "${2-}" ] || options+=(--rounds "$2")
[ -z "${3-}" ] || options+=(--seconds "$3")
[ -z "${SHARE_CYCLE_JSON-}" ] || options+=(--json "$SHARE_CYCLE_JSON")
if [ ! -e /dev/nvidiactl ]; then
	echo "Bail out! there is no GPU here (/dev/nvidiactl)"
	exit 2
fi
echo "# date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
echo "# kernel: $(uname -srm), $(nproc) processors"
timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null |
	sed 's/^/# GPU, driver, memory: /'
echo "# culimbo: $("$1/tools/culimbo" --version 2>&1 | head -n 1)"
exec python3 "$(dirname "${BASH_SOURCE[0]}")/../bench/share_cycle.py" "${options[@]}" "$1"
