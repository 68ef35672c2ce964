#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Makes the same driver calls with and without culimbo; see runner.c.
#
#   run.sh [--gpu | --as-on-gpu] [--brief] [--observe] [--share-all] [--seconds N] [--from SEED] [BUILD_DIR [SEED...]]
#
# Without seeds and --seconds it runs the seeds of `make check`.
# --gpu: uses this machine's driver.
# --as-on-gpu: makes the calls that --gpu makes on the simulated driver.
# --observe: with CULIMBO_MODE=observe, and only the differences that doc/differences.md allows there.
# --share-all: with CULIMBO_SHARE=all; each seed plays virtual memory.
# --brief: ends at the first difference and does not shorten the sequence.
# Prints TAP.  However it ends, the output says so; runner.c lists the exit statuses.
#
#   DIFFERENTIAL_LIST  the allowed differences (doc/differences.md)
#   DIFFERENTIAL_TMP   where it makes its folder (/dev/shm)
#   DIFFERENTIAL_POOLS=1     on a GPU a third of the seeds shares pools, too
#   DIFFERENTIAL_VIRTUAL=no  no seed plays virtual memory
set -u

unset LD_PRELOAD TEST_DOOR
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
usage() {
	echo "usage: run.sh [--gpu | --as-on-gpu] [--brief] [--observe] [--share-all] [--seconds N] [--from SEED] [BUILD_DIR [SEED...]]" >&2
	exit 2
}
gpu='' brief='' observe='' share='' seconds='' from=''
while [ $# -gt 0 ]; do
	case $1 in
	--gpu | --as-on-gpu) gpu=$1 && shift ;;
	--brief) brief=1 && shift ;;
	--observe) observe=1 && shift ;;
	--share-all) share=1 && shift ;;
	--seconds | --from)
		case ${2-} in
		'' | *[!0-9]*) usage ;;
		esac
		[ "$1" = --from ] && from=$2
		[ "$1" = --seconds ] && seconds=$2
		shift 2
		;;
	-*) usage ;;
	*) break ;;
	esac
done
build=${1:-${top_builddir-}}
[ $# -eq 0 ] || shift
[ -n "$build" ] || usage
build=$(cd "$build" && pwd) || exit 1
for part in .libs/libculimbo.so tools/culimbo tests/differential/differential; do
	[ -e "$build/$part" ] || {
		echo "Bail out! there is no $build/$part (make check builds it)"
		exit 1
	}
done
list=${DIFFERENTIAL_LIST:-$(dirname "$0")/../../doc/differences.md}
shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
dir=$(mktemp -d "${DIFFERENTIAL_TMP:-$shared}/culimbo-differential.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT

[ -z "$observe" ] || {
	export CULIMBO_MODE=observe
	# the rules that also apply there
	grep -E '^\| (rule|`stamp`|`dlerror`|`export`) |^\|-' "$list" > "$dir/list"
	list=$dir/list
}
[ -z "$share" ] || export CULIMBO_SHARE=all
[ $# -gt 0 ] || [ -n "$seconds" ] || {
	i=0
	while [ $i -lt 400 ]; do
		i=$((i + 1))
		set -- "$@" $i
	done
	set -- "$@" 2125 # opens a block that was created where an ended context was
	set -- "$@" 1795639612415 # exports a block that was freed in stream order while another process needed memory
	set -- "$@" 1795800424173 # opens a stale handle during a capture, after a free in a stream's order
}
# Runs in the background, so that a signal to this shell is handled at once and passed on.
runner='' signal=''
trap 'signal=15; [ -z "$runner" ] || kill -TERM "$runner" 2> /dev/null' HUP INT TERM
CULIMBO=$build/tools/culimbo DIFFERENTIAL_DIR=$dir DIFFERENTIAL_LIST=$list CULIMBO_REPORT=off \
	"$build/tests/differential/differential" compare ${gpu:+"$gpu"} ${brief:+--brief} \
	${seconds:+--seconds "$seconds"} ${from:+--from "$from"} "$@" &
runner=$!
[ -z "$signal" ] || kill -TERM "$runner"
wait "$runner"
status=$?
# a signal ended the wait: the runner is printing why
while [ -n "$signal" ] && kill -0 "$runner" 2> /dev/null; do
	wait "$runner"
	status=$?
done
case $status in
137 | 134 | 139)
	at='' # no other process can report it: read the sides' current calls (skip the first eight bytes)
	for side in bare culimbo; do
		[ ! -e "$dir/$side.at" ] || at="$at, $side at $(tail -c +9 "$dir/$side.at" | tr -d '\000')"
	done
	echo "Bail out! the runner was ended by signal $((status - 128))$at"
	;;
esac
exit "$status"
