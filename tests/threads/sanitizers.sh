#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The unit tests and end-to-end scenes under AddressSanitizer with
# UndefinedBehaviorSanitizer, under ThreadSanitizer, and one sharing under
# valgrind's memcheck: none reports anything.  `make check-sanitizers` runs it.
#
#   sanitizers.sh SOURCE_DIR BUILD_DIR CUDA_DIR
#
# The two trees are built in BUILD_DIR/sanitize-*.  Prints TAP, and times.
#
# No suppressions.  What is set, and why:
#   verify_asan_link_order=0  libculimbo.so is preloaded before libasan by design
#   detect_leaks=0            at exit blocks are the driver's and the kernel's to take
#   die_after_fork=0          unit tests fork with threads and start some in the child
# Under ThreadSanitizer, unit tests are only judged by its reports: some of them
# assert times, or how often something came about, and all is slower there.
set -u

if [ $# -ne 3 ]; then
	echo "usage: sanitizers.sh SOURCE_DIR BUILD_DIR CUDA_DIR" >&2
	exit 2
fi
source=$(cd "$1" && pwd) || exit 1
build=$(cd "$2" && pwd) || exit 1
cuda=$3
unset LD_PRELOAD
begun=$(date +%s)

number=0
failures=0
ok() { # STATUS TEXT
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		failures=$((failures + 1))
		echo "not ok $number - $2"
	fi
}
took() {
	echo "# $1: $(($(date +%s) - $2)) s"
}

units='collector handshake limbo log options shm'
programs='tests/e2e/actor tests/e2e/actor_linked tests/e2e/scenes'
for unit in $units; do
	programs="$programs tests/unit/test_$unit"
done

# A report of any of them, in files.
reports='ERROR: AddressSanitizer|WARNING: ThreadSanitizer|runtime error:|ERROR: LeakSanitizer|Sanitizer:DEADLYSIGNAL|FATAL: ThreadSanitizer'

make_tree() { # NAME CFLAGS CONFIGURE_ARGUMENTS: sets tree
	tree=$build/sanitize-$1
	cflags=$2
	shift 2
	since=$(date +%s)
	mkdir -p "$tree" || exit 1
	(
		cd "$tree" || exit 1
		[ -e config.status ] ||
			"$source/configure" -q --with-cuda="$cuda" CFLAGS="$cflags" "$@" || exit 1
		# one after the other: `all` is a make of its own
		make -s -j"${MAKE_JOBS:-2}" all || exit 1
		# shellcheck disable=SC2086
		make -s -j"${MAKE_JOBS:-2}" $programs
	) > "$tree.log" 2>&1 < /dev/null
	status=$?
	ok "$status" "$(basename "$tree") is built"
	[ "$status" -eq 0 ] || tail -n 10 "$tree.log" | sed 's/^/#   /'
	took "building $(basename "$tree")" "$since"
}

# Whether nothing was reported, in what a run wrote.
clean() { # FILE
	grep -E "$reports" "$1" > /dev/null || return 0
	grep -E -A 12 "$reports" "$1" | head -n 30 | cut -c1-200 | sed 's/^/#   /'
	return 1
}

run_units() { # JUDGE: also by the exit status
	for unit in $units; do
		since=$(date +%s)
		(
			cd "$tree" && export top_builddir="$tree" top_srcdir="$source"
			CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 170 "tests/unit/test_$unit"
		) > "$tree/unit-$unit.out" 2>&1 < /dev/null
		status=$?
		[ "$1" = judge ] || status=0
		grep -q '^ok ' "$tree/unit-$unit.out" || [ "$1" != judge ] || status=1
		clean "$tree/unit-$unit.out" || status=1
		ok "$status" "$(basename "$tree"): test_$unit, nothing is reported"
		took "test_$unit" "$since"
	done
}

# What an actor writes on stderr is what a scene looks at, so a report fails it.
run_scenes() { # SCENE...
	since=$(date +%s)
	for scene; do
		sh "$source/tests/e2e/run.sh" "$tree" "$scene" > "$tree/scene.out" 2>&1 < /dev/null
		status=$?
		clean "$tree/scene.out" || status=1
		ok "$status" "$(basename "$tree"): scene $scene, nothing is reported"
		[ "$status" -eq 0 ] || grep -v '^ok' "$tree/scene.out" | head -n 20 | sed 's/^/#   /'
	done
	took "scenes" "$since"
}

# ------------------------------------------------------------------------ address
export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0
export UBSAN_OPTIONS=print_stacktrace=1
make_tree asan "-g -O1" --enable-asan --enable-ubsan
if [ "$status" -eq 0 ]; then
	run_units judge
	run_scenes reuse-dlsym reuse-linked fork-calls event-destroyed unknown-tail threads-small \
		closed-descriptors misuse leaks
fi

# ------------------------------------------------------------------------- thread
export TSAN_OPTIONS=die_after_fork=0
make_tree tsan "-g -O1 -include $source/tests/threads/tsan_clock.h" --enable-tsan
if [ "$status" -eq 0 ]; then
	units='collector handshake log options shm'
	run_units reports
	run_scenes reuse-dlsym threads-small fork-calls event-destroyed twice
fi

# ----------------------------------------------------------------------- valgrind
if command -v valgrind > /dev/null && [ -x "$build/tests/e2e/demo" ]; then
	since=$(date +%s)
	dir=$(mktemp -d "$build/valgrind.XXXXXX") || exit 1
	CULIMBO_DIR=$dir/limbo CULIMBO_SIM_DIR=$dir/sim timeout -k 5 120 \
		"$build/tools/culimbo" run --simulate -- \
		valgrind -q --error-exitcode=99 --leak-check=no --log-file="$dir/log.%p" \
		"$build/tests/e2e/demo" > "$dir/out" 2>&1 < /dev/null
	status=$?
	grep -q '^right: ' "$dir/out" || status=1
	cat "$dir"/log.* > "$dir/log" 2> /dev/null
	[ ! -s "$dir/log" ] || status=1
	ok "$status" "valgrind: the demo, both processes, reads its own bytes and nothing is reported"
	[ "$status" -eq 0 ] || head -n 30 "$dir/log" "$dir/out" | sed 's/^/#   /'
	rm -rf "$dir"
	took "valgrind" "$since"
else
	number=$((number + 1))
	echo "ok $number # SKIP there is no valgrind"
fi

took "all" "$begun"
echo "1..$number"
[ "$failures" -eq 0 ]
