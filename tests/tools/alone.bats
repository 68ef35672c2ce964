#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# The command without optional libraries, and a library that needs a newer C library than the program has.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h
	# dlopen() fails at a file that is no library, and looks no further
	mkdir nothing
	touch nothing/libdw.so.1 nothing/libsmartcols.so.1 nothing/libncursesw.so.{5,6}
}
teardown() {
	share_teardown
}
alone() {
	LD_LIBRARY_PATH=$PWD/nothing "$@"
}

@test "the command needs only the C library" {
	readelf -d "$C" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
		grep -vE '^(libc|libdl|libpthread|librt|libm|ld-linux[-a-z0-9_]*)\.so\.[0-9]$' > needs || :
	[ ! -s needs ] || { cat needs; return 1; }
}

@test "run, check and metrics work completely, without a message" {
	[ "$(alone "$C" run --simulate -- "$top_builddir/tests/e2e/demo" 2>&1)" = "right: the consumer reads 17, its own byte" ]
	run -98 alone "$C" check --simulate -- true
	[[ $output != *missing* ]] || { echo "$output"; return 1; }
	run -0 alone "$C" metrics
	[[ $output == *"# TYPE culimbo_"* && $output != *missing* ]] || { echo "$output"; return 1; }
}

@test "tables are the same to the byte" {
	start P
	start C
	tell P "export 1024 3"
	tell C "open $SAID"
	tell P "free 1"
	for how in "" --json --raw "--noheadings --bytes"; do
		for table in ps blocks; do
			# (what ages while we look is left out)
			# shellcheck disable=SC2086 # words
			"$C" $table $how -o PID,STATE,COMMAND > with 2> with.err || "$C" $table $how > with
			# shellcheck disable=SC2086
			alone "$C" $table $how -o PID,STATE,COMMAND > without 2> without.err || alone "$C" $table $how > without
			cmp with without
			cmp with.err without.err
		done
	done
}

@test "a report has its frames without names, and one line says why" {
	start P CULIMBO_REPORT=off
	start C CULIMBO_REPORT=off
	tell P "export 1024 3"
	tell C "open $SAID"
	tell P "free 1"
	"$C" report > with
	alone "$C" report > without 2> said
	grep -q '#0 0x[0-9a-f]* in main .*sharer\.c:' with
	grep -q '#0 0x[0-9a-f]* (.*/sharer+0x[0-9a-f]*) (BuildId: ' without
	[ "$(wc -l < said)" -eq 1 ]
	grep -q 'without names and lines: libdw is missing (Debian: libdw1' said
	grep -q 'TOTAL processes=2' without
}

@test "top at a terminal is one table, and one line says why" {
	command -v script > /dev/null || skip "there is no script here"
	start P
	tell P "export 1024 1"
	alone timeout 20 script -qec "stty cols 200; '$C' top" typed < /dev/null > /dev/null
	grep -q 'culimbo top: one table and no screen: ncurses is missing (Debian: libncursesw6' typed
	grep -q "${PID[P]} " typed
}

# A copy of the build that needs a version which no C library has.
too_new() {
	mkdir -p new/tools new/.libs
	cp "$C" new/tools/culimbo
	sed 's/GLIBC_2\.17/GLIBC_2.97/g; s/GLIBC_2\.14/GLIBC_2.94/g' "$top_builddir/.libs/libculimbo.so" > new/.libs/libculimbo.so
	cmp -s new/.libs/libculimbo.so "$top_builddir/.libs/libculimbo.so" && return 1
	run -1 env LD_PRELOAD="$PWD/new/.libs/libculimbo.so" true # so it would be
}

@test "a library that needs a newer C library: a message before CMD runs, 126" {
	too_new
	run new/tools/culimbo run -- sh -c 'echo it ran'
	exits 126
	[[ $output != *"it ran"* ]]
	has "its C library is too old for culimbo's library"
	has "version \`GLIBC_2.9"
	has "--no-preload"
	# of a script its interpreter's
	printf '#!/bin/sh\necho it ran\n' > script
	chmod +x script
	run new/tools/culimbo run -- ./script
	exits 126
	run new/tools/culimbo check -- ./script
	exits 126
	run -0 new/tools/culimbo run --no-preload -- ./script
	[ "$output" = "it ran" ]
}

@test "a program with a loader of its own is checked before it runs" {
	loader=$(readelf -l "$(type -P true)" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
	mkdir other
	cp -L "$loader" other/
	mine=$PWD/other/${loader##*/}
	cat > own.c <<-'END'
		#include <stdio.h>
		int main(void) { puts("it ran"); return 0; }
	END
	"${CC:-gcc}" -o own own.c -Wl,--dynamic-linker="$mine"
	run -0 --separate-stderr "$C" run -- ./own
	[ "$output" = "it ran" ]
	too_new
	run new/tools/culimbo run -- ./own
	exits 126
	[[ $output != *"it ran"* ]]
}
