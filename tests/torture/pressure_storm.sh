#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The pressure storm: pressure_storm.sh [BUILD_DIR [ALLOCATIONS]]
#
# The live blocks of all processes always fit into the device, so no allocation may
# fail; see pressure_storm.c.  Uses the simulated driver.  Runs a control without
# culimbo first.  Prints TAP, and one line that begins with "pressure_storm:".
#
#   TORTURE_SEED     another seed (printed)
#   TORTURE_KEEP     not empty: keep the folder and print its path
set -u

# shellcheck source-path=SCRIPTDIR source=play.sh
. "$(dirname "$0")/play.sh"

usage() {
	echo "usage: pressure_storm.sh [BUILD_DIR [ALLOCATIONS]]" >&2
	exit 2
}
[ $# -le 2 ] || usage
build=${1:-${top_builddir-}}
allocations=${2:-${STORM_ALLOCATIONS:-1}}
[ -n "$build" ] || usage
case $allocations in
'' | *[!0-9]*) usage ;;
esac
begin pressure_storm "$build"
[ -n "${STORM_NO_CONTROL-}" ] || run control 60 --control 1
# a thousand allocations a second is slow
run pressure_storm $((60 + allocations / 1000)) "$allocations"
said pressure_storm
quiet pressure_storm
end
