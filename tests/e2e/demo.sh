#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The demo: runs demo.c without culimbo, with it, and with a leak, which the report
# at exit names.  `./bootstrap demo` builds everything and runs this.
#
#   TOP_BUILDDIR         the build tree (default: the current folder)
#   --gpu, --simulate    which driver (else DEMO_DRIVER=gpu|simulate, else the GPU
#                        if there is one)
#
# The exit status is 0 when the program reads right bytes with culimbo and, on the
# simulated driver, wrong ones without it.
set -u

top=${TOP_BUILDDIR:-${top_builddir:-.}}
top=$(cd "$top" && pwd) || exit 2
culimbo=${CULIMBO:-$top/tools/culimbo}
demo=$top/tests/e2e/demo

driver=${DEMO_DRIVER-}
case ${1-} in
--gpu) driver=gpu ;;
--simulate) driver=simulate ;;
"") ;;
*)
	echo "usage: demo.sh [--gpu | --simulate]" >&2
	exit 2
	;;
esac
if [ -z "$driver" ]; then
	driver=simulate
	if [ -e /dev/nvidiactl ] && { ldconfig -p || /sbin/ldconfig -p; } 2> /dev/null |
		grep -q 'libcuda\.so\.1'; then
		driver=gpu
	fi
fi
simulate=
on="the GPU"
if [ "$driver" = simulate ]; then
	simulate=" --simulate"
	on="the simulated driver"
fi
for part in "$culimbo" "$demo"; do
	if [ ! -x "$part" ]; then
		echo "demo.sh: there is no $part: build first (make, make check TESTS=)" >&2
		exit 2
	fi
done

shared=/dev/shm
[ -w "$shared" ] || shared=${TMPDIR:-/tmp}
folder=$(mktemp -d "$shared/culimbo-demo.XXXXXX") || exit 2
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' HUP INT TERM
export CULIMBO_DIR="$folder/limbo" CULIMBO_SIM_DIR="$folder/sim"

# shellcheck disable=SC2086 # none or one word
run() { # ARGUMENTS OF culimbo run -- PROGRAM
	echo "   \$ $culimbo run$simulate $*" | sed "s|$PWD/||g"
	timeout -k 5 60 "$culimbo" run $simulate "$@" > "$folder/out" 2>&1 < /dev/null
	status=$?
	sed 's/^/   /' "$folder/out"
}

echo "On $on: a producer shares 1 KiB (all 17) with a consumer, frees it while"
echo "the consumer has it open, and writes 99 into the next block that it allocates."
echo
echo "1. Without culimbo:"
run --no-preload -- "$demo"
bare=$status
echo "2. With culimbo, the same program:"
run -- "$demo"
right=$status
echo "3. With culimbo, and a consumer that never closes what it opened:"
run -- "$demo" --leak
leak=$status
grep -q SUMMARY "$folder/out"
report=$?

if [ "$right" -ne 0 ] || [ "$leak" -ne 0 ] || [ "$report" -ne 0 ]; then
	echo "This is not as it should be (status $right, $leak with culimbo)." >&2
	exit 1
fi
if [ "$bare" -ne 1 ]; then
	echo "Without culimbo the program was not corrupted this time (status $bare)." >&2
	[ "$driver" = gpu ] && [ "$bare" -eq 0 ] || exit 1
fi
exit 0
