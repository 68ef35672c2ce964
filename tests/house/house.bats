#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154
# (output and status come from bats)
# The folders of the code (doc/architecture.md): house.py finds no error in the code, and finds
# each error that a test plants in a copy.
bats_require_minimum_version 1.5.0

setup() {
	work=$(mktemp -d "${TMPDIR:-/tmp}/culimbo-house.XXXXXX")
}
teardown() {
	rm -rf "$work"
}

house() {
	run python3 "$top_srcdir/tests/house/house.py" "$@"
	echo "$output"
}

# Copies the sources and the objects; the test plants an error in the copy.
copy() {
	mkdir "$work/source" "$work/build"
	(cd "$top_srcdir" && find preload shim tools -name '*.[chS]' -print0 | tar -c --null -T - -f -) |
		tar -x -C "$work/source" -f -
	(cd "$top_builddir" && find preload shim tools -name '*.o' -print0 | tar -c --null -T - -f -) |
		tar -x -C "$work/build" -f -
}

# Writes FILE with these lines.
plant() { # FILE TEXT...
	printf '%s\n' "${@:2}" > "$work/source/$1"
}

compile() { # FILE
	object=$work/build/${1%/*}/.libs/libshim_la-$(basename "$1" .c).o
	"${CC%% *}" -std=gnu11 -w -fPIC -I "$work/source" -c -o "$object" "$work/source/$1"
}

finds() { # TEXT...
	local text
	house "$work/source" "$work/build"
	[ "$status" -eq 1 ]
	for text in "$@"; do
		[[ $output == *"$text"* ]] || return 1
	done
}

@test "house: every arrow leads down, there is no circle, and no file is too long" {
	house "$top_srcdir" "$top_builddir"
	[ "$status" -eq 0 ]
	# it has read files, objects and arrows
	[[ $output =~ ([0-9]+)\ files,\ ([0-9]+)\ objects,\ ([0-9]+)\ arrows ]]
	[ "${BASH_REMATCH[1]}" -gt 200 ]
	[ "${BASH_REMATCH[2]}" -gt 100 ]
	[ "${BASH_REMATCH[3]}" -gt 400 ]
	# and the table of ways
	[[ $output == *"a freed pointer: 7, an opened handle: 9, "*"a context's end: 4"* ]]
}

@test "house: an #include and a call that lead up are found" {
	copy
	plant shim/base/planted.h '#include "shim/limbo/limbo.h"'
	finds "shim/base/planted.h -> shim/limbo/limbo.h: #include: leads up"
	plant shim/base/planted.c 'void cl_collector_wake(void);' 'void planted(void) { cl_collector_wake(); }'
	compile shim/base/planted.c
	finds "shim/base/planted.c -> shim/limbo/collector.c: cl_collector_wake: leads up"
}

@test "house: exporter/ and importer/ that know each other are found" {
	copy
	plant shim/exporter/planted.h '#include "shim/importer/mappings.h"'
	plant shim/importer/planted.h '#include "shim/exporter/free.h"'
	finds "shim/exporter/planted.h -> shim/importer/mappings.h: #include: exporter/ and importer/ do not know each other" \
		"shim/importer/planted.h -> shim/exporter/free.h: #include: leads up"
}

@test "house: a variable in shm/ or base/ is found" {
	copy
	plant shim/shm/planted.c '#include "shim/base/hot.h"' \
		'int planted; static int hidden = 3; int f(void) { static int n; return hidden++ + n++; }' \
		'CL_HOT_DATA int read_often; CL_HOT_LOCKED int locked; CL_HOT_SHARING_LOCKED int shared;'
	compile shim/shm/planted.c
	finds "shim/shm/planted.c: planted: a variable" "shim/shm/planted.c: hidden: a variable" \
		"shim/shm/planted.c: n.0: a variable" "shim/shm/planted.c: read_often: a variable" \
		"shim/shm/planted.c: locked: a variable" "shim/shm/planted.c: shared: a variable"
}

@test "house: a circle of files is found" {
	copy
	plant shim/diag/planted.c 'void theirs(void);' 'void ours(void) { theirs(); }'
	plant shim/diag/second.c 'void ours(void);' 'void theirs(void) { ours(); }'
	compile shim/diag/planted.c
	compile shim/diag/second.c
	finds "a circle: "
	[[ $output == *"shim/diag/planted.c (theirs) -> shim/diag/second.c"* ]]
}

@test "house: a state of a block that is assigned elsewhere than in the setter is found" {
	copy
	local n=0 planted
	for planted in 'block->state = CL_BLOCK_READY;' 'event->block.state = 1;' '(*at)->state=to;' \
		'struct cl_block b = { .state = CL_BLOCK_HELD };' 'memset(&block->state, 0, 1);' '++block->state;' \
		'block->state |= 2;'; do
		printf '%s\n' "void planted_$((n += 1))(struct cl_block *block)" '{' "	$planted" '}'
	done > "$work/source/shim/exporter/planted.c"
	# another function in the setter's file is found, too
	printf '%s\n' 'static void planted(struct cl_block *block)' '{' '	block->state = 0;' '}' \
		>> "$work/source/shim/limbo/limbo.c"
	# reading the state is allowed, and processes and contexts have states of their own
	plant shim/exporter/asks.c 'void planted(void)' '{' '	if (block->state == CL_BLOCK_READY)' \
		'		view->state = CL_ALIVE;' '	context->state = CL_CONTEXT_LIVE;' '	struct cl_view_process process = { .state = CL_DEAD };' '}'
	finds "shim/limbo/limbo.c: planted(): assigns the state of a block"
	for n in 1 2 3 4 5 6 7; do
		[[ $output == *"shim/exporter/planted.c: planted_$n(): assigns the state of a block"* ]]
	done
	[[ $output != *asks.c* ]]
}

@test "house: a file of more than 600 lines is found" {
	copy
	plant shim/self/planted.c
	seq -f '/* %g */' 601 > "$work/source/shim/self/planted.c"
	finds "shim/self/planted.c: 601 lines, more than 600"
}

@test "house: what one file alone may do is found in another" {
	copy
	plant shim/exporter/planted.c 'void planted(CUcontext ctx)' '{' '	cl_driver.cuCtxPushCurrent_v2(ctx);' '}' \
		'static struct cl_finding made = {' '	.kind = 1,' '};' \
		'struct planted {' '	int n;' '	struct planted *next;' '};' \
		'static pthread_mutex_t planted_lock = PTHREAD_MUTEX_INITIALIZER;'
	finds "shim/exporter/planted.c:3: pushes a context" "shim/exporter/planted.c:5: fills a finding in by hand" \
		"shim/exporter/planted.c:8: has a list of its own" "shim/exporter/planted.c:12: has a mutex without a rank"
}

@test "house: a function that hooks call is found if it has no guard and door.h does not name it" {
	copy
	sed -i 's/cl_process_end()/the end/' "$work/source/shim/door.h"
	sed -i '/^void cl_event_created(/,/^}/{/CL_DOOR(/d}' "$work/source/shim/shim.c"
	finds "shim/life.c: cl_process_end(): begins without a guard" "shim/shim.c: cl_event_created(): begins without a guard"
	[[ $output != *"cl_event_export(): begins without"* ]]
}

@test "house: a way that is too long, counts wrong or names a file that is not there is found" {
	copy
	mkdir "$work/source/doc"
	sed -e 's/^\(| a freed pointer | 7 | .*\)`shm\/record.c`/\1`shm\/record.c`, `shm\/slot.c`/' \
		-e 's/^| an opened handle | 9 | \(.*\)`shm\/slot.c`/| an opened handle | 10 | \1`shm\/slot.c`, `shm\/gone.c`/' \
		"$top_srcdir/doc/architecture.md" | grep -v "a context's end | " > "$work/source/doc/architecture.md"
	finds "the way of a freed pointer: 8 files are named and 7 are counted" \
		"the way of an opened handle: shm/gone.c is not there" \
		"the way of an opened handle: 10 files are named and 10 are counted" \
		"the way of a context's end is not in doc/architecture.md"
}

@test "house: a file that a way calls without a row in doc/architecture.md is found, and a row that no way needs" {
	copy
	mkdir "$work/source/doc"
	sed -e '/^| `driver\/wait.c` | free |/d' -e 's/^| `driver\/made.c` | pool |/| `driver\/made.c` | end |/' \
		-e 's/^| `limbo\/press.c`, /&`shm\/gone.c`, /' "$top_srcdir/doc/architecture.md" > "$work/source/doc/architecture.md"
	finds "the way of a freed pointer: cl_wait_as_a_free() of shim/driver/wait.c, called by cl_free_memory() of shim/exporter/free.c: doc" \
		"the way of an imported pool pointer: cl_pool_memory_device() of shim/driver/made.c, called by " \
		"doc/architecture.md: shim/driver/made.c is a service or another way, and no way" \
		"doc/architecture.md: shim/shm/gone.c is a service or another way, and no way"
}
