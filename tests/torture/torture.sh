#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The torture: torture.sh [--gpu] [--bare] [BUILD_DIR [SECONDS]]
#
# 8 exporters and 24 importers share, free, and are killed; see torture.c.  Uses the
# simulated driver, or with --gpu this machine's driver.  First runs a control without
# culimbo, which must see foreign bytes.  Prints TAP, and one line that begins with
# "torture:".  With --bare only the control runs, for SECONDS, and prints its counters:
# what the driver itself does when processes are killed.
#
#   TORTURE_SECONDS  how long, when SECONDS is not given (60)
#   TORTURE_SEED     another seed (printed)
#   TORTURE_POOLS    which pools exporters share by pointer.  0: none; kept: those that keep freed memory;
#                    both (the default): also some that return it to the driver; most: every block is
#                    of a pool, half of them of one that returns its memory
#   TORTURE_VIRTUAL  0: no virtual memory that is shared by legacy handles
#   TORTURE_ASYNC    0: no stream-ordered memory that is shared by legacy handles
#   TORTURE_KEEP     not empty: keep the folder and print its path
set -u

# shellcheck source-path=SCRIPTDIR source=play.sh
. "$(dirname "$0")/play.sh"

usage() {
	echo "usage: torture.sh [--gpu] [--bare] [BUILD_DIR [SECONDS]]" >&2
	exit 2
}
gpu='' bare=''
while :; do
	case ${1-} in
	--gpu) gpu=--gpu ;;
	--bare) bare=--bare ;;
	-*) usage ;;
	*) break ;;
	esac
	shift
done
[ $# -le 2 ] || usage
build=${1:-${top_builddir-}}
seconds=${2:-${TORTURE_SECONDS:-60}}
[ -n "$build" ] || usage
case $seconds in
'' | *[!0-9]*) usage ;;
esac
begin torture "$build"
if [ -n "$bare" ]; then
	# shellcheck disable=SC2086 # none or one word
	run bare "$seconds" $gpu --bare "$seconds"
	said bare
	end
fi
number=1
crash=$({ LD_PRELOAD=$TORTURE_BUILD/.libs/libculimbo.so "$program" --crash; } 2>&1; echo "status $?")
case $crash in
*"torture: CRASH of process "*": signal 6,"*"torture: CRASH of process "*": signal 11,"*"torture: CRASH "?" $program+0x"*"status 139") echo "ok 1 - a process that crashes says where" ;;
*)
	failures=1
	echo "not ok 1 - a process that crashes says where"
	echo "$crash" | sed 's/^/# /'
	;;
esac
# shellcheck disable=SC2086 # none or one word
run control 10 $gpu --control 10
# shellcheck disable=SC2086
run torture "$seconds" $gpu "$seconds"
said torture
quiet torture
end
