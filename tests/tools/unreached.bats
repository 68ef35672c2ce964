#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
#
# What LD_PRELOAD doesn't reach, on the simulated driver: that it does no harm, and
# what is said.  (setuid, another C library and static programs: run.bats.)
bats_require_minimum_version 1.5.0
load common

setup_file() {
	cd "$BATS_FILE_TMPDIR" || return 1
	cuda=$(sed -n 's/^CUDA_HOME_DIR = //p' "$top_builddir/Makefile")
	$CC -D_GNU_SOURCE -DPLUGIN_HOST -o host "$top_srcdir/tests/tools/plugin.c" -ldl
	$CC -fPIC -shared -isystem "${cuda:-/usr/local/cuda}/include" -o plugin.so \
		"$top_srcdir/tests/tools/plugin.c" "$top_builddir/tools/sim/.libs/libcuda.so.1"
}

# play WAY: the host bare and preloaded; report, handle, and its last 8 bytes in $tail
play() {
	export CULIMBO_SIM_DIR=$PWD/sim CULIMBO_DIR=$PWD/limbo
	run "$C" run --simulate --no-preload -- "$BATS_FILE_TMPDIR/host" "$1" "$BATS_FILE_TMPDIR/plugin.so"
	bare=$output bare_status=$status
	[[ $bare == "1024 bytes of its own, a second free gives "* ]]
	CULIMBO_REPORT=always CULIMBO_REPORT_FILE=$PWD/report.%p run "$C" run --simulate -- \
		"$BATS_FILE_TMPDIR/host" "$1" "$BATS_FILE_TMPDIR/plugin.so" "$PWD/handle"
	exits "$bare_status"
	exits 7
	[ "$output" = "$bare" ]
	stamp=$(od -An -tx1 -j 12 -N 4 handle | tr -d ' ')
}

@test "a plugin that is opened as usual is seen (the control)" {
	play plain
	[ "$stamp" != 00000000 ]
	grep -q 'SUMMARY .* exports=1 ' report.*
}

@test "a plugin opened with RTLD_DEEPBIND works as bare; the report says that nothing was seen" {
	play deepbind
	[ "$stamp" = 00000000 ]
	grep -q 'no CUDA call of it reached culimbo' report.*
	[ ! -e limbo ]
}

@test "a plugin in a namespace of dlmopen works as bare; the report says that nothing was seen" {
	play dlmopen
	[ "$stamp" = 00000000 ]
	grep -q 'no CUDA call of it reached culimbo' report.*
	[ ! -e limbo ]
}

@test "a static program that is reached by LD_PRELOAD alone: nothing happens, nothing is said" {
	echo 'int main(void) { return 7; }' > s.c
	$CC -static -o s s.c 2>/dev/null || skip "no static C library"
	LD_PRELOAD=$("$C" version | sed -n 's/^library  *//p') CULIMBO_REPORT=always run ./s
	exits 7
	[ -z "$output" ]
}

@test "a setuid program: the library in LD_PRELOAD is ignored by ld.so, which says nothing" {
	[ "$(id -u)" -eq 0 ] || skip "not root"
	case $(findmnt -no OPTIONS -T .) in *nosuid*) skip "nosuid here" ;; esac
	grep -q '^NoNewPrivs:.*1' /proc/self/status && skip "no_new_privs here"
	install -o 65534 -m 4755 "$(type -P cat)" suid
	export LD_PRELOAD=$("$C" version | sed -n 's/^library  *//p')
	run ./suid /proc/self/maps
	unset LD_PRELOAD
	exits 0
	[[ $output != *libculimbo* ]]
	[[ $output != *ERROR* ]]
}
