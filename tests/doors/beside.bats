#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# culimbo beside another copy of itself, and beside wrappers that it can't see through, on the
# simulated driver.
load common.bash

setup_file() {
	[ -e "$SIM/libcuda.so.1" ] || skip "tools/sim is not built"
	mkdir -p "$T/first" "$T/second"
	cp "$LIBRARY" "$T/first/libculimbo.so"
	cp "$LIBRARY" "$T/second/libculimbo.so"
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -o "$T/two_doors" "$HERE/two_doors.c" "$SIM/libcuda.so.1" -ldl
	build_library wrapper.so "-DFIRST_GLIBC=\"$FIRST_GLIBC\"" "$HERE/wrapper.c"
	build_library wrapper-chain.so "-DFIRST_GLIBC=\"$FIRST_GLIBC\" -DDOORS_CHAIN" "$HERE/wrapper.c"
	build_library second.so "-DFIRST_GLIBC=\"$FIRST_GLIBC\"" "$HERE/second_dlsym.c"
	build_library second-chain.so "-DFIRST_GLIBC=\"$FIRST_GLIBC\" -DDOORS_CHAIN" "$HERE/second_dlsym.c"
}

setup() {
	export LD_LIBRARY_PATH=$SIM CULIMBO_DIR=$BATS_TEST_TMPDIR/limbo CULIMBO_SIM_DIR=$BATS_TEST_TMPDIR/sim
	mkdir -m 700 "$CULIMBO_DIR"
	export CULIMBO_LOG_FILE=$BATS_TEST_TMPDIR/log
}

first_of_two() {
	echo "looked up in $1/libculimbo.so"
}

@test "a program that is linked and looks up: both doors lead to one culimbo, none to the bare driver" {
	same "$("$T/two_doors" | head -1)" "open 201"
	same "$(LD_PRELOAD=$T/first/libculimbo.so "$T/two_doors")" "open 0
$(first_of_two "$T/first")"
	[ ! -s "$CULIMBO_LOG_FILE" ]
}

@test "two copies: all is done by the first, which says so once" {
	for separator in : " "; do
		rm -f "$CULIMBO_LOG_FILE"
		same "$(LD_PRELOAD="$T/first/libculimbo.so$separator$T/second/libculimbo.so" "$T/two_doors" 2>&1)" "open 0
$(first_of_two "$T/first")"
		cat "$CULIMBO_LOG_FILE"
		[ "$(grep -c . "$CULIMBO_LOG_FILE")" -eq 1 ]
		grep -q "two copies of culimbo are loaded: $T/first/libculimbo.so (version .*) is used, $T/second/libculimbo.so (" \
			"$CULIMBO_LOG_FILE"
	done
	[ -z "$(ls -A "$CULIMBO_DIR")" ]
}

@test "two copies: one report at the end, by the first; a program that uses no driver hears of nothing" {
	said=$(CULIMBO_REPORT=always LD_PRELOAD="$T/first/libculimbo.so:$T/second/libculimbo.so" "$T/two_doors" 2>&1)
	echo "$said"
	[ "$(grep -c SUMMARY <<<"$said")" -eq 1 ]
	rm -f "$CULIMBO_LOG_FILE"
	same "$(LD_PRELOAD="$T/first/libculimbo.so:$T/second/libculimbo.so" sh -c 'echo word' 2>&1)" word
	[ ! -s "$CULIMBO_LOG_FILE" ]
}

@test "the same file twice, or by a link, is one copy" {
	ln -sf first/libculimbo.so "$T/link.so"
	same "$(LD_PRELOAD="$T/first/libculimbo.so:$T/link.so:$T/first/libculimbo.so" "$T/two_doors" 2>&1)" "open 0
$(first_of_two "$T/first")"
	[ ! -s "$CULIMBO_LOG_FILE" ]
}

# says_once PRELOAD WORDS: a program that shares logs one line, which has WORDS
says_once() {
	rm -f "$CULIMBO_LOG_FILE"
	DOORS_QUIET=1 LD_PRELOAD=$1 "$T/two_doors"
	cat "$CULIMBO_LOG_FILE"
	[ "$(grep -c . "$CULIMBO_LOG_FILE")" -eq 1 ]
	grep -qF -- "$2" "$CULIMBO_LOG_FILE"
}

@test "wrappers that find the driver past us: it is said whose they are, before us or after us" {
	says_once "$LIBRARY:$T/wrapper.so" "warning: $T/wrapper.so wraps cuMemFree_v2 and 1 more driver calls"
	says_once "$T/wrapper-chain.so:$LIBRARY" "warning: $T/wrapper-chain.so wraps cuMemFree_v2 and 1 more driver calls"
	# it returns the driver's own pointers for all other calls, so no look-up reaches us
	says_once "$T/wrapper.so:$LIBRARY" "warning: $T/wrapper.so wraps cuMemFree_v2 and 11 more driver calls"
	says_once "$T/second.so:$LIBRARY" "warning: $T/second.so wraps cuMemFree_v2 and 11 more driver calls"
}

@test "interposers that hand on, and programs that don't share, are no matter" {
	for with in "$LIBRARY" "$LIBRARY:$T/second.so" "$LIBRARY:$T/second-chain.so" "$T/second-chain.so:$LIBRARY"; do
		DOORS_QUIET=1 LD_PRELOAD=$with "$T/two_doors"
		[ ! -s "$CULIMBO_LOG_FILE" ]
	done
	LD_PRELOAD=$LIBRARY:$T/wrapper.so "$T/two_doors" --shares-nothing
	[ ! -s "$CULIMBO_LOG_FILE" ]
}

@test "wrappers beside a program that shares by descriptors alone are no matter, until it shares a handle" {
	LD_PRELOAD=$LIBRARY:$T/wrapper.so "$T/two_doors" --descriptors
	[ ! -s "$CULIMBO_LOG_FILE" ]
	LD_PRELOAD=$LIBRARY:$T/wrapper.so "$T/two_doors" --descriptors-first
	cat "$CULIMBO_LOG_FILE"
	[ "$(grep -c "wraps cuMemFree_v2" "$CULIMBO_LOG_FILE")" -eq 1 ]
}
