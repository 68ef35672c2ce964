#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The storm: storm.sh [--no-forks] [BUILD_DIR [SECONDS]]
#
# 2 importers with 8 threads each, 5 exporters that are killed, contexts that end, exits amid work; see
# storm.c.  Uses the simulated driver.  First runs a control without culimbo, which must
# see foreign bytes.  Prints TAP, and one line that begins with "storm:".
#
#   STORM_SECONDS    how long, when SECONDS is not given (6)
#   TORTURE_SEED     another seed (printed)
#   TORTURE_KEEP     not empty: keep the folder and print its path
set -u

# shellcheck source-path=SCRIPTDIR source=play.sh
. "$(dirname "$0")/play.sh"

usage() {
	echo "usage: storm.sh [--no-forks] [BUILD_DIR [SECONDS]]" >&2
	exit 2
}
forks=''
case ${1-} in
--no-forks) forks=--no-forks && shift ;;
-*) usage ;;
esac
[ $# -le 2 ] || usage
build=${1:-${top_builddir-}}
seconds=${2:-${STORM_SECONDS:-6}}
[ -n "$build" ] || usage
case $seconds in
'' | *[!0-9]*) usage ;;
esac
devices=2 grace=20ms
begin storm "$build"
run control 10 --control --no-forks 10
# shellcheck disable=SC2086 # none or one word
run storm "$seconds" $forks "$seconds"
said storm
# prints a sanitizer's report unchanged
cat "$top"/storm/*.err | grep -E -A 30 'Sanitizer|runtime error:' | head -n 60 | cut -c1-160 | sed 's/^/# /'
quiet storm
end
