#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures the share cycle on this machine's GPU, bare and under culimbo in alternation:
#
#	tests/gpu/share_cycle.sh BUILD_DIR [ROUNDS] [SECONDS] (default: 3 rounds, 0.6 s for each setting: about 3 minutes)
#	tests/gpu/share_cycle.sh profile BUILD_DIR [ROUNDS] [SECONDS] (the cost of each call: under 1 minute)
#
# Prints a table and a TAP line for each limit (tests/bench/share_cycle.py lists them).  The exit
# status is 1 when a limit is exceeded.  BUILD_DIR may come from another machine; it needs
# .libs/libculimbo.so and tests/bench/share_cycle.  This machine needs python3.
# SHARE_CYCLE_LIMIT: seconds for the rounds; half of that again, at most, goes to what is not sure and to the bystander.
# SHARE_CYCLE_JSON names a file that gets all figures of all runs.
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
[ -z "${SHARE_CYCLE_LIMIT-}" ] || options+=(--limit "$SHARE_CYCLE_LIMIT")
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
