#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The same driver calls with and without culimbo; see runner.c.
#
#   run.sh [--gpu] [--seconds N] [--from SEED] [BUILD_DIR [SEED...]]
#
# Without seeds and --seconds: those of `make check`.  --gpu: on the machine's own driver.
# Prints TAP.
set -u

unset LD_PRELOAD TEST_DOOR
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
usage() {
	echo "usage: run.sh [--gpu] [--seconds N] [--from SEED] [BUILD_DIR [SEED...]]" >&2
	exit 2
}
gpu='' seconds='' from=''
while [ $# -gt 0 ]; do
	case $1 in
	--gpu) gpu=1 && shift ;;
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
shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
dir=$(mktemp -d "$shared/culimbo-differential.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' HUP INT TERM

[ $# -gt 0 ] || [ -n "$seconds" ] || {
	i=0
	while [ $i -lt 1000 ]; do
		i=$((i + 1))
		set -- "$@" $i
	done
	set -- "$@" 2125 # what was made where an ended context was is opened
}
CULIMBO=$build/tools/culimbo DIFFERENTIAL_DIR=$dir CULIMBO_REPORT=off \
	"$build/tests/differential/differential" compare ${gpu:+--gpu} ${seconds:+--seconds "$seconds"} \
	${from:+--from "$from"} "$@"
