#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzzes the code that reads bytes of other processes: exporter files (region), handles
# (handle), export data of pools (pool), requests for descriptors (request) and answers to
# them, with virtual handles (answer) and with those of pools (pool_answer), the environment (options).
# Prints TAP.
#
# First it replays every seed with the project's own compiler.  Then libFuzzer, with
# AddressSanitizer, fuzzes from the seeds for FUZZ_SECONDS (120) in all: one target after
# the other, one thread each, with the random seed FUZZ_SEED (1).  Without a clang that has
# libFuzzer that part is skipped, and the replayer makes random inputs instead.
#
#   make fuzz FUZZ_SECONDS=3600    longer; finds are kept in FUZZ_KEEP (tests/fuzz/found)
#
# Must always hold: all files are in a folder of the test, which is removed at the end.
set -u
src=${top_srcdir:?} build=${top_builddir:?}
cuda=$(sed -n 's/^CUDA_CPPFLAGS = //p' "$build/Makefile")
seconds=${FUZZ_SECONDS:-120}
targets="region handle pool request answer pool_answer options"
FUZZ_CC=${FUZZ_CC:-clang}

work=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/culimbo-fuzz.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM
export FUZZ_DIR=$work/files
mkdir "$FUZZ_DIR"

number=0 failed=0
ok() { # STATUS TEXT LOG
	number=$((number + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $number - $2"
	else
		failed=1
		echo "not ok $number - $2"
		tail -n 40 "$3" | cut -c1-300 | sed 's/^/#   /'
	fi
}
skip() {
	number=$((number + 1))
	echo "ok $number - $1 # SKIP $2"
}

# ------------------------------------------------------------------- the seeds
bash "$src/tests/fuzz/seeds.sh" "$work/seeds" > "$work/log" 2>&1 &&
	diff -r "$work/seeds" "$src/tests/fuzz/corpus" >> "$work/log"
ok $? "the corpus is what seeds.sh makes" "$work/log"
for target in $targets; do
	FUZZ_SECONDS=0 timeout 120 "$build/tests/fuzz/replay_$target" "$src/tests/fuzz/corpus/$target" \
		> "$work/log" 2>&1
	ok $? "$target: every seed is replayed ($(tail -n 1 "$work/log"))" "$work/log"
done

# -------------------------------------------------------------------- the fuzzer
cat > "$work/probe.c" << 'END'
#include <stddef.h>
#include <stdint.h>
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return size && !data; }
END
why=
command -v "$FUZZ_CC" > /dev/null || why="there is no $FUZZ_CC"
[ -n "$why" ] || "$FUZZ_CC" -fsanitize=fuzzer,address "$work/probe.c" -o "$work/probe" > "$work/log" 2>&1 ||
	why="$FUZZ_CC has no libFuzzer here (Debian: libclang-rt-14-dev)"
[ -n "$why" ] || "$work/probe" -runs=1 > "$work/log" 2>&1 || why="what $FUZZ_CC makes with libFuzzer does not run here"

# Compiles all that the targets share, once, into $work/objects.
build_shared() {
	local file object

	mkdir "$work/objects"
	for file in "$src"/shim/*.c "$src"/shim/*/*.c "$src/tests/fuzz/guard.c"; do
		object=${file#"$src"/}
		set -- "${flags[@]}"
		[ "$object" != shim/shm/region.c ] || set -- "$@" -include "$src/tests/fuzz/guard.h"
		"$FUZZ_CC" "$@" -c "$file" -o "$work/objects/${object//\//-}.o" || return
	done
}

# in a short run the compiler takes longer than the fuzzer
optimize=-O1
[ "$seconds" -ge 120 ] || optimize=-O0
# shellcheck disable=SC2206,SC2054 # $cuda is several words; a comma is part of an option
flags=(-std=gnu11 $optimize -gline-tables-only -w -D_GNU_SOURCE -I"$build" -I"$src" $cuda
	-fsanitize=fuzzer,address -fno-omit-frame-pointer)
if [ -z "$why" ] && ! build_shared > "$work/log" 2>&1; then
	ok 1 "what the targets share is built with libFuzzer" "$work/log"
	echo "1..$number"
	exit 1
fi

each=$((seconds / 7))
[ "$each" -gt 0 ] || each=1
for target in $targets; do
	if [ -n "$why" ]; then
		skip "$target: libFuzzer, $each s" "$why"
		FUZZ_SECONDS=$each timeout -k 5 $((each + 120)) "$build/tests/fuzz/replay_$target" \
			"$src/tests/fuzz/corpus/$target" > "$work/log" 2>&1
		ok $? "$target: inputs by chance ($(tail -n 1 "$work/log"))" "$work/log"
		continue
	fi
	# muldefs: a target's own definitions, which come first, replace those of shim/, as in the replayer
	"$FUZZ_CC" "${flags[@]}" "$src/tests/fuzz/$target.c" "$work"/objects/*.o -o "$work/fuzz_$target" \
		-Wl,-z,muldefs -lpthread -ldl > "$work/log" 2>&1
	status=$?
	if [ "$status" -ne 0 ]; then
		ok 1 "$target: is built with libFuzzer" "$work/log"
		continue
	fi
	mkdir "$work/corpus_$target"
	# leaks: holds and peers, which are kept on purpose, are none
	ASAN_OPTIONS=detect_leaks=0 timeout -k 5 $((each + 120)) "$work/fuzz_$target" \
		-max_total_time="$each" -timeout=25 -max_len=1024 -rss_limit_mb=2048 \
		-seed="${FUZZ_SEED:-1}" -print_final_stats=1 -artifact_prefix="$work/" \
		"$work/corpus_$target" "$src/tests/fuzz/corpus/$target" > "$work/log" 2>&1
	status=$?
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
	covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$work/log" | tail -n 1)
	ok $status "$target: libFuzzer, $each s, finds nothing (${runs:-0} inputs, ${covered:-0} edges)" "$work/log"
	if [ "$status" -ne 0 ]; then
		keep=${FUZZ_KEEP:-$build/tests/fuzz/found}
		mkdir -p "$keep" && cp "$work"/crash-* "$work"/timeout-* "$work"/oom-* "$keep" 2> /dev/null
		echo "# kept in $keep; again: $build/tests/fuzz/replay_$target FILE"
	fi
done
echo "1..$number"
exit $failed
