#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests UCX itself: its memory hooks see every allocation and free, on the simulated driver,
# with and without culimbo.  UCX installs them before the program's look-ups or after them, by
# short patches or by long ones.  It also runs with patches alone: by default UCX changes the
# tables of linked programs as well.
set -u
build=${1:-${top_builddir:-build}}
top_srcdir=${top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
ucx=$build/tests/patch/ucx
skip() {
	echo "1..0 # SKIP $*"
	exit 0
}
[ -e "$ucx" ] || skip "no UCX here: ./bootstrap check and tests/patch/fetch-ucx.sh fetch it by pip, where they can"
tmp=$(mktemp -d "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)/culimbo-ucx.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir -m 700 "$tmp/limbo" "$tmp/sim"
export CULIMBO_DIR="$tmp/limbo" CULIMBO_SIM_DIR="$tmp/sim" CULIMBO_REPORT=off
export LD_LIBRARY_PATH="$build/tools/sim/.libs"
# before each patch UCX waits 50 ms for other threads, of which this program has none
export UCX_MEM_BISTRO_GRACE_DURATION=0
# shellcheck disable=SC2046 # words
${CC:-cc} -O1 -g -D_GNU_SOURCE -I"$build" -I"$top_srcdir" -I"$ucx/libucx/include" \
	$(sed -n 's/^CUDA_CPPFLAGS = //p' "$build/Makefile") -o "$tmp/ucx" \
	"$top_srcdir/tests/patch/ucx.c" "$LD_LIBRARY_PATH/libcuda.so.1" -ldl || exit 1

number=0 result=0
play() { # NAME PRELOAD first|last SETTINGS-OF-UCX...
	name=$1 preload=$2 order=$3
	shift 3
	number=$((number + 1))
	if env "$@" LD_PRELOAD="$preload" timeout 60 "$tmp/ucx" "$ucx/libucx/lib" "$order" \
		${preload:+culimbo} \
		> "$tmp/said" 2>&1; then
		echo "ok $number - UCX's hooks $order, $*: $name"
	else
		echo "not ok $number - UCX's hooks $order, $*: $name ($?)"
		sed 's/^/# /' "$tmp/said"
		result=1
	fi
}

echo "1..12"
for order in first last; do
	for settings in UCX_MEM_BISTRO_FORCE_FAR_JUMP=n UCX_MEM_BISTRO_FORCE_FAR_JUMP=y \
		UCX_MEM_CUDA_HOOK_MODE=bistro; do
		play bare '' "$order" "$settings"
		play "under culimbo" "$build/.libs/libculimbo.so" "$order" "$settings"
	done
done
exit $result
