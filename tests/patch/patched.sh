#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Our own patcher patches the calls of a program, on the simulated driver, with and without
# culimbo, by long patches and by short ones.
set -u
build=${1:-${top_builddir:-build}}
tmp=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)/culimbo-patch.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir -m 700 "$tmp/limbo" "$tmp/sim"
export CULIMBO_DIR="$tmp/limbo" CULIMBO_SIM_DIR="$tmp/sim" CULIMBO_REPORT=off
export LD_LIBRARY_PATH="$build/tools/sim/.libs"
number=0 result=0

play() { # PRELOAD ARGUMENTS...
	preload=$1
	shift
	LD_PRELOAD=$preload "$build/tests/patch/patched" "$@" > "$tmp/said"
	status=$?
	while read -r line; do
		number=$((number + 1))
		case $line in
		ok*) echo "ok $number - $*: ${line#* - }" ;;
		not*) echo "not ok $number - $*: ${line#* - }" ;;
		*) number=$((number - 1)) && echo "# $line" ;;
		esac
	done < "$tmp/said"
	[ $status -eq 0 ] || result=1
	grep -q '^1\.\.[1-9]' "$tmp/said" || {
		number=$((number + 1)) result=1
		echo "not ok $number - $*: comes to its end ($status)"
	}
}

for how in far near; do
	play '' $how
	play "$build/.libs/libculimbo.so" $how culimbo
done
echo "1..$number"
exit $result
