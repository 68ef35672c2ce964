#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The preload tells the shim once when a process that shares ends, however it ends.  Other
# processes don't notice culimbo at all.
load common.bash

setup_file() {
	build_driver
	build_stubbed O2
	build_library early.so "" "$HERE/early.c"
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -o "$T/leave" "$HERE/leave.c"
	# shellcheck disable=SC2086
	$CC $WARN $INCLUDES -DDOORS_EXPORT -o "$T/leave-shares" "$HERE/leave.c" "$T/driver/libcuda.so.1"
}

setup() {
	STUBBED=$T/libculimbo-stubbed-O2.so
	export LD_LIBRARY_PATH=$T/driver
}

@test "each end of a process that shares: told once, status kept" {
	for how in return _exit _Exit quick_exit signal; do
		LD_PRELOAD=$STUBBED run "$T/leave-shares" $how
		echo "$how: $status $output"
		[ "$status" = 7 ]
		[ "$(echo "$output" | grep -c '^shim end$')" = 1 ]
	done
}

@test "quick_exit: the program's handlers run first" {
	LD_PRELOAD=$STUBBED run "$T/leave-shares" quick_exit
	same "$(echo "$output" | tail -2)" "program's handler
shim end"
}

@test "the status that the shim wants, where one can be given" {
	for how in _exit _Exit quick_exit; do
		STUB_STATUS=9 LD_PRELOAD=$STUBBED run "$T/leave-shares" $how
		[ "$status" = 9 ]
	done
}

@test "the child of a vfork ends without a word in its parent's name" {
	LD_PRELOAD=$STUBBED run "$T/leave-shares" vfork
	echo "$output"
	[ "$status" = 7 ]
	same "$(echo "$output" | tail -2)" "child ended with 3
shim end"
}

@test "each end of a process that doesn't share: nothing" {
	for how in return _exit _Exit signal; do
		LD_PRELOAD=$STUBBED run "$T/leave" $how
		[ "$status" = 7 ]
		same "$output" ""
	done
	LD_PRELOAD=$STUBBED run "$T/leave" quick_exit
	[ "$status" = 7 ]
	same "$output" "program's handler"
}

@test "an end before our constructor ran" {
	DOORS_EARLY=_exit LD_PRELOAD=$STUBBED:$T/early.so run "$(type -P true)"
	[ "$status" = 7 ]
}

# Counts each system call that a program makes after it is loaded.  The end of loading is
# where ld.so unmaps its list of libraries.
calls() {
	# the same addresses in each run: how much an allocator takes depends on them
	setarch -R strace -f -qq -o "$BATS_TEST_TMPDIR/calls" "$@" > /dev/null 2>&1
	awk '/execve\(/ { loaded[$1] = 0 }
		loaded[$1] || !($1 in loaded) { sub(/\(.*/, "", $2); if ($2 ~ /^[a-z]/) print $2 }
		/munmap\(/ { loaded[$1] = 1 }' "$BATS_TEST_TMPDIR/calls" | sort | uniq -c
}

@test "bash, git and python3: the same output and status, no message" {
	for command in 'bash -c "echo one; (exit 3); echo \$?; exec 3>&1; echo two >&3"' \
		'git -C "$top_srcdir" --version' 'python3 -c 1' \
		'python3 -c "import subprocess; print(subprocess.run([\"echo\", \"x\"]).returncode)"'; do
		run bash -c "$command"
		bare=$output bare_status=$status
		LD_PRELOAD=$LIBRARY run bash -c "$command"
		same "$output" "$bare"
		[ "$status" = "$bare_status" ]
	done
}

@test "bash, git and python3: no system call beyond loading one library more" {
	command -v strace > /dev/null && strace -qq true 2> /dev/null || skip "no strace here"
	# another library with the same kinds of segments shows what loading costs
	echo 'char some[9000] = {1}, none[90000]; void *self = &self;' > "$BATS_TEST_TMPDIR/empty.c"
	# shellcheck disable=SC2086
	$CC -fPIC -shared -o "$BATS_TEST_TMPDIR/none.so" "$BATS_TEST_TMPDIR/empty.c" -Wl,-z,now -lc
	# names of one length: the environment's size changes a program's allocations
	cp "$LIBRARY" "$BATS_TEST_TMPDIR/ours.so"
	# the interpreter itself, not a version manager's wrapper, which starts a hundred shells
	python=$(python3 -c 'import sys; print(sys.executable)')
	for command in "bash -c exit" "git --version" "$python -S -c 1"; do
		# shellcheck disable=SC2086
		empty=$(calls -E LD_PRELOAD="$BATS_TEST_TMPDIR/none.so" env PYTHONHASHSEED=0 $command)
		# shellcheck disable=SC2086
		ours=$(calls -E LD_PRELOAD="$BATS_TEST_TMPDIR/ours.so" env PYTHONHASHSEED=0 $command)
		echo "$command"
		[ "$(echo "$ours" | wc -l)" -gt 2 ]
		same "$empty" "$ours"
	done
}
