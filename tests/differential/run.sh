#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The same driver calls with and without culimbo; see runner.c.
#
#   run.sh [--gpu] [--brief] [--observe] [--seconds N] [--from SEED] [BUILD_DIR [SEED...]]
#
# Without seeds and --seconds: those of `make check`.  --gpu: on the machine's own driver.
# --observe: with CULIMBO_MODE=observe, and only what doc/differences.md allows there.
# --brief: the first difference ends it, and is not made as short as can be.
# Prints TAP.  However it ends, it says so; runner.c has the exit statuses.
#
#   DIFFERENTIAL_LIST  what may differ (doc/differences.md)
#   DIFFERENTIAL_TMP   where it makes its folder (/dev/shm)
set -u

unset LD_PRELOAD TEST_DOOR
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
usage() {
	echo "usage: run.sh [--gpu] [--brief] [--observe] [--seconds N] [--from SEED] [BUILD_DIR [SEED...]]" >&2
	exit 2
}
gpu='' brief='' observe='' seconds='' from=''
while [ $# -gt 0 ]; do
	case $1 in
	--gpu) gpu=1 && shift ;;
	--brief) brief=1 && shift ;;
	--observe) observe=1 && shift ;;
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
	# the rules that hold there, too
	grep -E '^\| (rule|`stamp`|`dlerror`|`export`) |^\|-' "$list" > "$dir/list"
	list=$dir/list
}
[ $# -gt 0 ] || [ -n "$seconds" ] || {
	i=0
	while [ $i -lt 500 ]; do
		i=$((i + 1))
		set -- "$@" $i
	done
	set -- "$@" 2125 # what was made where an ended context was is opened
}
# In the background, so that a signal to this shell alone is heard, and handed on.
runner='' signal=''
trap 'signal=15; [ -z "$runner" ] || kill -TERM "$runner" 2> /dev/null' HUP INT TERM
CULIMBO=$build/tools/culimbo DIFFERENTIAL_DIR=$dir DIFFERENTIAL_LIST=$list CULIMBO_REPORT=off \
	"$build/tests/differential/differential" compare ${gpu:+--gpu} ${brief:+--brief} \
	${seconds:+--seconds "$seconds"} ${from:+--from "$from"} "$@" &
runner=$!
[ -z "$signal" ] || kill -TERM "$runner"
wait "$runner"
status=$?
# a wait that a signal ended: the runner is just saying so
while [ -n "$signal" ] && kill -0 "$runner" 2> /dev/null; do
	wait "$runner"
	status=$?
done
case $status in
137 | 134 | 139)
	at='' # nobody else can say it: by what the sides are at (the first eight bytes count)
	for side in bare culimbo; do
		[ ! -e "$dir/$side.at" ] || at="$at, $side at $(tail -c +9 "$dir/$side.at" | tr -d '\000')"
	done
	echo "Bail out! the runner was ended by signal $((status - 128))$at"
	;;
esac
exit "$status"
