#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# All unit tests, end-to-end scenes, and (but for valgrind) the storm, under
# AddressSanitizer with UndefinedBehaviorSanitizer, under ThreadSanitizer, and under
# valgrind's memcheck: none reports anything.  `make check-sanitizers` runs it;
# `make check-valgrind` the last part alone, with all scenes.
#
#   sanitizers.sh SOURCE_DIR BUILD_DIR CUDA_DIR [valgrind]
#
# The two trees are built in BUILD_DIR/sanitize-*.  Prints TAP, and times.
#
# No suppressions, but one for valgrind (memcheck.supp says which).  What is set, and why:
#   verify_asan_link_order=0  libculimbo.so is preloaded before libasan by design
#   detect_leaks=0            at exit blocks are the driver's and the kernel's to take
#   die_after_fork=0          unit tests fork with threads and start some in the child
# Under ThreadSanitizer and valgrind, unit tests are only judged by their reports:
# some of them assert times, or how often something came about, and all is slower there.
set -u

if [ $# -ne 3 ] && [ "$#:${4-}" != 4:valgrind ]; then
	echo "usage: sanitizers.sh SOURCE_DIR BUILD_DIR CUDA_DIR [valgrind]" >&2
	exit 2
fi
source=$(cd "$1" && pwd) || exit 1
build=$(cd "$2" && pwd) || exit 1
cuda=$3
only=${4-}
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

# (those with a fault planted, test_handshake_*, share its source)
units=$(cd "$source/tests/unit" && echo test_*.c | sed 's/test_\([a-z_]*\)\.c/\1/g')
programs='tests/e2e/actor tests/e2e/actor_linked tests/e2e/scenes tests/torture/storm tests/report/fake_python'
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
			"$source/configure" -q --enable-debug --with-cuda="$cuda" CFLAGS="$cflags" "$@" || exit 1
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

# Why a unit test failed, in its own words.
why() { # FILE STATUS SECONDS
	case $2 in
	124 | 137) echo "#   not ended within $3 s; the last it said: $(tail -n 1 "$1" | cut -c1-200)" ;;
	*) echo "#   exit status $2" ;;
	esac
	grep -vE '^(ok |# ok |not ok [0-9]+ # SKIP|1\.\.)' "$1" | head -n 40 | cut -c1-200 | sed 's/^/#   /'
}

run_units() { # JUDGE: also by the exit status
	for unit in $units; do
		since=$(date +%s)
		(
			# shellcheck disable=SC2030
			cd "$tree" && export top_builddir="$tree" top_srcdir="$source"
			CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 170 "tests/unit/test_$unit"
		) > "$tree/unit-$unit.out" 2>&1 < /dev/null
		status=$?
		ended=$status
		[ "$1" = judge ] || status=0
		grep -q '^ok ' "$tree/unit-$unit.out" || [ "$1" != judge ] || status=1
		clean "$tree/unit-$unit.out" || status=1
		ok "$status" "$(basename "$tree"): test_$unit, nothing is reported"
		[ "$status" -eq 0 ] || why "$tree/unit-$unit.out" "$ended" 170
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

# Real interpreters, as far as the machine has them; what a program writes on stderr is looked at.
run_python() {
	since=$(date +%s)
	(
		# shellcheck disable=SC2030,SC2031
		export top_builddir="$tree" top_srcdir="$source" CULIMBO="$tree/tools/culimbo"
		timeout -k 5 300 bats --tap "$source/tests/report/python.bats"
	) > "$tree/python.out" 2>&1 < /dev/null
	status=$?
	clean "$tree/python.out" || status=1
	ok "$status" "$(basename "$tree"): Python's frames, nothing is reported"
	[ "$status" -eq 0 ] || grep -v '^ok' "$tree/python.out" | head -n 30 | cut -c1-200 | sed 's/^/#   /'
	took "Python" "$since"
}

# The storm, judged by its own lines as well: threads, contexts that end, exporters that are killed.
# Without forks: what a sanitizer's runtime has locked in other threads stays so in a child of _Fork().
run_storm() {
	since=$(date +%s)
	sh "$source/tests/torture/storm.sh" --no-forks "$tree" 5 > "$tree/storm.out" 2>&1 < /dev/null
	status=$?
	clean "$tree/storm.out" || status=1
	ok "$status" "$(basename "$tree"): 5 s of the storm, nothing is reported"
	[ "$status" -eq 0 ] || grep -v '^ok' "$tree/storm.out" | head -n 30 | cut -c1-200 | sed 's/^/#   /'
	took "the storm" "$since"
}

# ------------------------------------------------------------------------ address
if [ -z "$only" ]; then
	export ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0
	export UBSAN_OPTIONS=print_stacktrace=1
	make_tree asan "-g -O1" --enable-asan --enable-ubsan
	if [ "$status" -eq 0 ]; then
		run_units judge
		run_scenes reuse-dlsym reuse-linked fork-calls event-destroyed unknown-tail threads-small \
			closed-descriptors misuse leaks virtual-one-linked virtual-threads virtual-forks virtual-flips
		# (not under ThreadSanitizer: it must be loaded before the interpreter makes threads)
		if command -v bats > /dev/null; then
			run_python
		fi
		run_storm
	fi

	# ------------------------------------------------------------------------- thread
	export TSAN_OPTIONS=die_after_fork=0
	make_tree tsan "-g -O1 -include $source/tests/threads/tsan_clock.h" --enable-tsan
	if [ "$status" -eq 0 ]; then
		run_units reports
		run_scenes reuse-dlsym threads-small fork-calls event-destroyed twice virtual-threads
		run_storm
	fi
fi

# ----------------------------------------------------------------------- valgrind
# Left out here, and why:
#   test_stack   changes stacks, and moves far on one, as valgrind is not told
#   test_blocks, test_exports, test_fence, test_grace*, test_imports*, test_report_data*, test_peers,
#   test_pool_ends, test_pools, test_python, test_reclaim, test_serve, test_serve_answers, and those of
#   test_limbo_* and test_shm_* that take more than 20 s of a processor, some of them minutes: in
#   check-valgrind
#   test_late    becomes another user, who can write none of memcheck's logs
#   test_serve_hostile  likewise, and it limits its descriptors, among which are memcheck's
#   test_locked  locks its memory, and memcheck's with it: there is none left
#   scenes that are played alone: they assert times or free memory
#   fork, exec, shares-nothing: valgrind's own descriptors, and its ways with exec
#   memory-findings, event-findings: they want each process's name in a report, and it is memcheck's
#   random-run: does not end in its time
left_out='fork|exec|shares-nothing|memory-findings|event-findings|random-run'
# (fair: else a thread that spins can keep the others out for minutes)
# lax-ioctls: it has no word for TIOCGSID, and would warn
memcheck="valgrind -q --sim-hints=lax-ioctls --error-exitcode=99 --leak-check=no --fair-sched=try"
memcheck="$memcheck --suppressions=$source/tests/threads/memcheck.supp"

# Whether nothing is in the logs of a run.
no_logs() { # FOLDER
	cat "$1"/log.* > "$1/log" 2> /dev/null
	[ -s "$1/log" ] || return 0
	head -n 40 "$1/log" | cut -c1-200 | sed 's/^/#   /'
	return 1
}

valgrind_unit() { # NAME
	since=$(date +%s)
	rm -rf "$dir" && mkdir "$dir" || exit 1
	(
		# shellcheck disable=SC2031
		cd "$build" && export top_builddir="$build" top_srcdir="$source"
		# shellcheck disable=SC2086 # words
		CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 600 $memcheck --log-file="$dir/log.%p" \
			"tests/unit/test_$1"
	) > "$dir/out" 2>&1 < /dev/null
	status=$?
	ended=$status
	# its tests ran, to the last
	{ grep -q '^ok ' "$dir/out" && grep -qE '^# (not )?ok - ' "$dir/out"; }
	status=$?
	no_logs "$dir" || status=1
	ok "$status" "valgrind: test_$1, nothing is reported"
	[ "$status" -eq 0 ] || why "$dir/out" "$ended" 600
	took "test_$1" "$since"
}

valgrind_scene() { # NAME
	rm -rf "$dir" && mkdir "$dir" || exit 1
	# valgrind makes a scene several times slower, and a busy machine may do so again
	E2E_SECONDS=600 E2E_UNDER="$memcheck --log-file=$dir/log.%p" \
		sh "$source/tests/e2e/run.sh" "$build" "$1" > "$dir/out" 2>&1 < /dev/null
	status=$?
	# (somebody was under it)
	ls "$dir"/log.* > /dev/null 2>&1 || status=1
	no_logs "$dir" || status=1
	ok "$status" "valgrind: scene $1, nothing is reported"
	[ "$status" -eq 0 ] || grep -v '^ok' "$dir/out" | head -n 20 | cut -c1-200 | sed 's/^/#   /'
}

if command -v valgrind > /dev/null && [ -x "$build/tests/e2e/demo" ]; then
	since=$(date +%s)
	dir=$(mktemp -d "$build/valgrind.XXXXXX") || exit 1
	# shellcheck disable=SC2086
	CULIMBO_DIR=$dir/limbo CULIMBO_SIM_DIR=$dir/sim timeout -k 5 120 \
		"$build/tools/culimbo" run --simulate -- \
		$memcheck --log-file="$dir/log.%p" \
		"$build/tests/e2e/demo" > "$dir/out" 2>&1 < /dev/null
	status=$?
	grep -q '^right: ' "$dir/out" || status=1
	cat "$dir"/log.* > "$dir/log" 2> /dev/null
	[ ! -s "$dir/log" ] || status=1
	ok "$status" "valgrind: the demo, both processes, reads its own bytes and nothing is reported"
	[ "$status" -eq 0 ] || head -n 30 "$dir/log" "$dir/out" | sed 's/^/#   /'
	begun_valgrind=$since
	scenes='reuse-linked own-handle fork-calls event-destroyed context-ends misuse'
	if [ -n "$only" ]; then
		E2E_SCENE_DIR=$dir E2E_BUILD=$build "$build/tests/e2e/scenes" --list > "$dir.scenes"
		scenes=$(sed -n 's/ any$//p' "$dir.scenes" | grep -vxE "$left_out")
		rm -f "$dir.scenes"
	fi
	for unit in $units; do
		case $only:$unit in
		*:stack | *:late | *:locked | *:serve_hostile | :blocks | :imports* | :report_data* | :peers | :reclaim) ;;
		:limbo_contexts | :limbo_events | :limbo_free | :limbo_grace | :limbo_holders) ;;
		:limbo_retry | :limbo_streams | :limbo_thread) ;;
		:exports | :fence | :grace | :grace_pages | :pool_ends | :pools | :python | :serve | :serve_answers) ;;
		:shm_deaths | :shm_file | :shm_records | :shm_refused | :shm_slots) ;;
		*) valgrind_unit "$unit" ;;
		esac
	done
	since=$(date +%s)
	for scene in $scenes; do
		valgrind_scene "$scene"
	done
	took "scenes" "$since"
	rm -rf "$dir"
	took "valgrind" "$begun_valgrind"
else
	number=$((number + 1))
	echo "ok $number # SKIP there is no valgrind"
fi

took "all" "$begun"
echo "1..$number"
[ "$failures" -eq 0 ]
