#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The torture: torture.sh [--gpu] [BUILD_DIR [SECONDS]]
#
# 8 exporters and 24 importers share, free, kill one another; see torture.c.
# On the simulated driver, or with --gpu on the machine's own.  Before that a
# control: the same without culimbo, which must see foreign bytes.  Prints TAP,
# and one line that begins with "torture:".
#
# Must always hold: a folder of its own for all that is shared, gone afterwards;
# a deadline; what is started does not outlive it.
#
#   TORTURE_SECONDS  how long, when SECONDS is not given (60)
#   TORTURE_SEED     plays another one (printed)
#   TORTURE_KEEP     not empty: leave the folder, and say where it is
set -u

# what the caller has of ours would reach the processes
unset LD_PRELOAD TEST_DOOR
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done

usage() {
	echo "usage: torture.sh [--gpu] [BUILD_DIR [SECONDS]]" >&2
	exit 2
}
gpu=
case ${1-} in
--gpu)
	gpu=--gpu
	shift
	;;
-*) usage ;;
esac
[ $# -le 2 ] || usage
build=${1:-${top_builddir-}}
seconds=${2:-${TORTURE_SECONDS:-60}}
[ -n "$build" ] || usage
case $seconds in
'' | *[!0-9]*) usage ;;
esac
TORTURE_BUILD=$(cd "$build" && pwd) || exit 1
program=$TORTURE_BUILD/tests/torture/torture

bail() {
	echo "Bail out! $*"
	exit 1
}
for part in "$program" "$TORTURE_BUILD/tools/culimbo" "$TORTURE_BUILD/.libs/libculimbo.so"; do
	[ -e "$part" ] || bail "there is no $part (make check builds it)"
done
if [ -n "$gpu" ]; then
	[ -e /dev/nvidiactl ] || bail "there is no GPU here (/dev/nvidiactl)"
else
	part=$TORTURE_BUILD/tools/sim/.libs/libcuda.so.1
	[ -e "$part" ] || bail "there is no $part"
fi

shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
top=$(mktemp -d "$shared/culimbo-torture.XXXXXX") || exit 1
clean() {
	if [ -n "${TORTURE_KEEP-}" ]; then
		echo "# kept: $top"
	else
		rm -rf "$top"
	fi
}
trap clean EXIT
trap 'exit 130' HUP INT TERM

TORTURE_SEED=${TORTURE_SEED:-$(($(date +%s) % 1000000))}
export TORTURE_BUILD TORTURE_SEED
echo "# TORTURE_SEED=$TORTURE_SEED"
number=0
failures=0

# One run in the folder $top/NAME; its lines get their numbers here.
run() { # NAME SECONDS ARGUMENTS OF torture
	dir=$top/$1
	most=$(($2 + 120 + 75 + 30)) # (it ends by itself before that, see torture.c)
	shift 2
	mkdir -p "$dir/reports"
	TORTURE_DIR=$dir CULIMBO_DIR=$dir/limbo CULIMBO_SIM_DIR=$dir/sim \
		CULIMBO_SIM_MEMORY=256MiB CULIMBO_GRACE=500ms \
		CULIMBO_REPORT=always CULIMBO_REPORT_FILE="$dir/reports/%p" \
		timeout -k 5 "$most" "$program" "$@" > "$dir/result" 2>&1 < /dev/null
	status=$?
	while IFS= read -r line; do
		case $line in
		"ok - "*) number=$((number + 1)) line="ok $number - ${line#ok - }" ;;
		"not ok - "*)
			number=$((number + 1)) failures=$((failures + 1))
			line="not ok $number - ${line#not ok - }"
			;;
		"#"* | "torture: "* | "Bail out!"*) ;;
		*) line="# $line" ;;
		esac
		printf '%s\n' "$line"
	done < "$dir/result"
	[ "$status" -eq 0 ] || {
		failures=$((failures + 1))
		echo "# torture ended with $status"
	}
	[ "$status" -ne 124 ] && [ "$status" -ne 137 ] || echo "Bail out! it takes longer than $most s"
}

# What they said on stderr: like lines once, with how often.
said() { # FOLDER
	cat "$1"/*.err | sed 's/0x[0-9a-f]*/N/g; s/[0-9][0-9]*/N/g' | cut -c1-200 |
		sort | uniq -c | sort -rn | head -n 20 | sed 's/^/# said: /'
	grep -h '^torture: \(FOREIGN\|ERROR\)' "$1"/*.err | head -n 10 | sed 's/^/#   /'
}

# shellcheck disable=SC2086 # none or one word
run control 10 $gpu --control 10
# shellcheck disable=SC2086
run torture "$seconds" $gpu "$seconds"
said "$top/torture"
number=$((number + 1))
if [ -n "$(find "$top/torture" -name '*.out' -size +0)" ]; then
	failures=$((failures + 1))
	echo "not ok $number - 4 nobody wrote to stdout"
else
	echo "ok $number - 4 nobody wrote to stdout"
fi
echo "1..$number"
[ "$failures" -eq 0 ]
