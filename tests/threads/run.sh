#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Tests threads, forks, signals and ends of processes, on the simulated driver.
#
#   run.sh [BUILD_DIR [PATTERN]]    PATTERN: of the tests of threads.c, see there
#
# Prints TAP.  Runs the tests of threads with culimbo and without it, which shows what the
# driver and libc do alone.  Then runs cancel, stacks and creators.
set -u

unset LD_PRELOAD
for name in $(env | sed -n 's/^\(CULIMBO_[A-Za-z0-9_]*\)=.*/\1/p'); do
	unset "$name"
done
build=${1:-${top_builddir-}}
pattern=${2:-*}
if [ $# -gt 2 ] || [ -z "$build" ]; then
	echo "usage: run.sh [BUILD_DIR [PATTERN]]" >&2
	exit 2
fi
build=$(cd "$build" && pwd) || exit 1
for part in .libs/libculimbo.so tools/sim/.libs/libcuda.so.1 tests/threads/threads \
	tests/threads/cancel tests/threads/stacks tests/threads/creators tests/threads/.libs/early_late.so; do
	[ -e "$build/$part" ] || {
		echo "Bail out! there is no $build/$part (make check builds it)"
		exit 1
	}
done
shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
dir=$(mktemp -d "$shared/culimbo-threads.XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' HUP INT TERM

number=0
failures=0
number_through() { # NAME
	seen=0
	bad=$failures
	while IFS= read -r line; do
		case $line in
		"ok "* | "not ok "*)
			number=$((number + 1))
			seen=1
			case $line in
			"not ok "*)
				failures=$((failures + 1))
				echo "not ok $number - $1: ${line#* - }"
				;;
			*) echo "ok $number - $1: ${line#* - }" ;;
			esac
			;;
		"1.."*) ;;
		"#"*) printf '%s\n' "$line" ;;
		*) printf '#   %s\n' "$line" ;;
		esac
	done < "$dir/out"
	if [ "$failures" -eq "$bad" ] && { [ "$status" -ne 0 ] || [ "$seen" -eq 0 ]; }; then
		number=$((number + 1))
		failures=$((failures + 1))
		echo "not ok $number - $1 ends well and says something (status $status)"
	fi
}

export CULIMBO_DIR="$dir/limbo" CULIMBO_SIM_DIR="$dir/sim"
# a short grace, so that the collector is at work meanwhile
export CULIMBO_GRACE=5ms CULIMBO_REPORT=off
export THREADS_EARLY_LATE="$build/tests/threads/.libs/early_late.so"

LD_LIBRARY_PATH=$build/tools/sim/.libs LD_PRELOAD=$build/.libs/libculimbo.so \
	timeout -k 5 400 "$build/tests/threads/threads" "$pattern" > "$dir/out" 2>&1 < /dev/null
status=$?
number_through culimbo
LD_LIBRARY_PATH=$build/tools/sim/.libs \
	timeout -k 5 400 "$build/tests/threads/threads" --bare "$pattern" > "$dir/out" 2>&1 < /dev/null
status=$?
number_through control
if [ "$pattern" = '*' ]; then
	CULIMBO_COLLECTOR=inline CULIMBO_GRACE=0 \
		timeout -k 5 400 "$build/tests/threads/cancel" > "$dir/out" 2>&1 < /dev/null
	status=$?
	number_through cancelled
	LD_LIBRARY_PATH=$build/tools/sim/.libs LD_PRELOAD=$build/.libs/libculimbo.so \
		timeout -k 5 60 "$build/tests/threads/stacks" > "$dir/out" 2>&1 < /dev/null
	status=$?
	number_through stacks
	CULIMBO_SHARE=all LD_LIBRARY_PATH=$build/tools/sim/.libs LD_PRELOAD=$build/.libs/libculimbo.so \
		timeout -k 5 60 "$build/tests/threads/creators" > "$dir/out" 2>&1 < /dev/null
	status=$?
	number_through creators
fi
echo "1..$number"
[ "$failures" -eq 0 ] && [ "$number" -gt 0 ]
