#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2016
# (output and status come from bats, top_builddir from the test environment; each test is a subshell)
# The report of programs with a bug, as a user sees it: culimbo check, culimbo report, their options.

setup() {
	C=${CULIMBO:?run me by make check, or set CULIMBO to the command}
	P=${top_builddir:?}/tests/report
	S=${top_srcdir:?}
	unset LD_PRELOAD LD_LIBRARY_PATH
	cd "$BATS_TEST_TMPDIR" || return 1
	shared=/dev/shm
	[ -w "$shared" ] || shared=$BATS_TEST_TMPDIR
	D=$(mktemp -d "$shared/culimbo-report.XXXXXX")
	export CULIMBO_SIM_DIR="$D/sim"
	mkfifo in
	exec 7<> in
}

teardown() {
	for pid in $(cat pids 2> /dev/null); do
		kill -9 "$pid" 2> /dev/null || :
	done
	rm -rf "$D"
}

# line FILE TEXT: the number of the line of tests/report/FILE that has TEXT
line() {
	grep -n -F "$2" "$S/tests/report/$1" | head -1 | cut -d: -f1
}

has() {
	grep -q -F -- "$2" "$1" || {
		echo "not in $1: $2"
		head -40 "$1"
		return 1
	}
}

# lacks FILE TEXT (a command behind a "!" cannot fail a test, unless it is its last)
lacks() {
	if grep -F -- "$2" "$1"; then
		echo "in $1: $2"
		return 1
	fi
}

valid() {
	python3 "$S/tests/report/schema.py" "$S/doc/report.schema.json" "$@"
}

# waits FILE TEXT: until it is there
waits() {
	for _ in $(seq 600); do
		grep -q -F -- "$2" "$1" 2> /dev/null && return 0
		sleep 0.05
	done
	echo "never in $1: $2"
	return 1
}

# start NUMBER PLACES: `many`, in the background, in its own directory; "in" is its stdin
start() {
	export CULIMBO_DIR="$D/limbo" CULIMBO_KEEP_DEAD=1h
	"$C" run --simulate -- "$P/many" "$@" < in > out 2> err 7>&- &
	many=$!
	echo $many > pids
	waits out ready
	read -r _ exporter importer < out
	echo "$exporter $importer" >> pids
}

# fails STATUS COMMAND...: it ends so
fails() {
	local want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" -eq "$want" ] || {
		echo "status $got, not $want: $*"
		return 1
	}
}

# ------------------------------------------------------------- three planted bugs
@test "a consumer that never closes is found, with the line that opened" {
	fails 99 "$C" check --simulate -- "$P/never_closes" 2> text
	has text "imported and never closed: 2, 2 MiB"
	has text "in open_frame "
	has text "never_closes.c:$(line never_closes.c 'CHECK(cuIpcOpenMemHandle')"
	has text "HINT: call cudaIpcCloseMemHandle"
	fails 99 "$C" check --simulate --json --output json -- "$P/never_closes"
	valid json
	jq -e -s --argjson line "$(line never_closes.c 'CHECK(cuIpcOpenMemHandle')" 'any(.[];
		.class == "not-closed" and .count == 2 and .bytes == 2097152 and .finding and
		.stack[0].function == "open_frame" and .stack[0].line == $line and
		.stack[1].function == "consume" and .exporter.freed_ns >= 0)' json
	jq -e -s '.[-1] | .type == "check" and .processes == 2 and .killed == 0 and .findings == 4' json
}

@test "a producer that frees before its consumer opened is found" {
	export CULIMBO_GRACE=50ms
	fails 99 "$C" check --simulate -- "$P/frees_early" 2> text
	has text "misuse: stale handles refused: their block had been freed: 2"
	has text "    2 blocks, device 0"
	lacks text " 0 B" # (of a handle alone, no size is known)
	has text "in consume_frame "
	grep -Eq 'block [0-9a-f]{6}:0 of its exporter: opened [0-9].* ago; freed [0-9].* ago$' text
	has text "      freed from"
	has text "in retire_frame "
	has text "frees_early.c:$(line frees_early.c 'CHECK(cuMemFree(frame')"
	lacks text "no longer known"
	has text "had freed it before this open"
	fails 99 "$C" check --simulate --json --output json -- "$P/frees_early" 2> err
	valid json
	jq -e -s 'any(.[]; .class == "stale-refused" and .count == 2 and .other.pid > 0 and
		.stack[0].function == "consume_frame" and .other_stack[0].function == "retire_frame" and
		(.items | all(.other_ns >= .when_ns)))' json
}

@test "a producer that frees before its consumer opened is found though culimbo kept the block" {
	fails 99 "$C" check --simulate -- "$P/frees_early" 2> text
	has text "misuse: opened after its exporter had freed it: 2, 2 MiB"
	grep -Eq 'block 0x[0-9a-f]+, 1 MiB: opened [0-9].* ago, [0-9]+ ms after its free$' text
	has text "in consume_frame "
	has text "in retire_frame "
	has text "frees_early.c:$(line frees_early.c 'CHECK(cuMemFree(frame')"
	has text "findings=2 suppressed=0"
	fails 99 "$C" check --simulate --json --output json -- "$P/frees_early"
	valid json
	jq -e -s 'any(.[]; .class == "opened-after-free" and .count == 2 and .other.pid > 0 and
		.stack[0].function == "consume_frame" and .other_stack[0].function == "retire_frame" and
		(.items | all(.after_free_ns >= 300000000)))' json
	printf 'leak:^retire_frame$\n' > known
	"$C" check --simulate --suppressions known -- "$P/frees_early" 2> text
	has text "findings=0 suppressed=2"
	# a plain run is told nothing, or, when it asks, what was kept
	export CULIMBO_DIR="$D/limbo"
	[ -z "$("$C" run --simulate -- "$P/frees_early" 2>&1)" ]
	CULIMBO_REPORT=always "$C" run --simulate -- "$P/frees_early" 2> text
	has text "culimbo kept 2 blocks alive that this program freed"
	lacks text "misuse:"
}

@test "a block that is freed while the consumer reads it is found, with the lines that freed and opened" {
	local demo="$top_builddir/tests/e2e/demo"
	at() { grep -n -F "$1" "$S/tests/e2e/demo.c" | head -1 | cut -d: -f1; }
	fails 99 "$C" check --simulate -- "$demo" > out 2> text
	has out "right: the consumer reads 17"
	has text "misuse: freed while other processes had it mapped: 1, 1 KiB"
	grep -Eq 'block 0x[0-9a-f]+, 1 KiB, device 0: freed .* ago; opened .* ago; mapped for [0-9.]+ [mu]?s after that: without culimbo process [0-9]+ could have read foreign bytes$' text
	has text "demo.c:$(at 'CHECK(cuMemFree(shared')"
	has text "demo.c:$(at 'CHECK(cuIpcOpenMemHandle')"
	has text "HINT: free it only after process"
	fails 99 "$C" check --simulate --json --output json -- "$demo" > out
	valid json
	jq -e -s --argjson free "$(at 'CHECK(cuMemFree(shared')" --argjson open "$(at 'CHECK(cuIpcOpenMemHandle')" 'any(.[];
		.class == "freed-while-mapped" and .count == 1 and .other.name == "demo" and .items[0].after_free_ns > 0 and
		.stack[0].line == $free and .other_stack[0].line == $open)' json
	jq -e -s '.[-1] | .type == "check" and .findings == 1' json
	printf 'leak:^producer$\n' > known
	"$C" check --simulate --suppressions known -- "$demo" > out 2> text
	has text "findings=0 suppressed=1"
	CULIMBO_STRICT=0 "$C" check --simulate -- "$demo" > out 2> text
	has text "findings=0 suppressed=0"
}

@test "a consumer that was killed is found: by its exporter, and from the file that it left" {
	fails 99 "$C" check --simulate -- "$P/is_killed" 2> text
	has text "taken back from processes that ended without closing: 1, 4 MiB"
	grep -Eq 'block 0x[0-9a-f]+, 4 MiB, device 0: taken back [0-9].* ago; freed ' text
	has text "in load_model "
	has text "find what killed it"
	lacks text "its exporter takes the memory back" # (it has ended since)
	has text "killed=1"
	fails 99 "$C" check --simulate --json --output json -- "$P/is_killed"
	valid json
	jq -e -s 'any(.[]; .class == "reclaimed" and .other.name == "is_killed" and
			(.other_stack | any(.function == "share_model"))) and
		any(.[]; .class == "not-closed" and .count == 1 and .stack[0].function == "load_model") and
		any(.[]; .type == "process" and .state == "dead") and
		(.[-1] | .killed == 1 and .findings == 2)' json
}

@test "check: CMD's own status and signal, nothing found, no CUDA, what is left behind" {
	CULIMBO_STRICT=0 "$C" check --simulate -- "$top_builddir/tests/e2e/demo" > out 2> text
	has out "right: the consumer reads 17"
	has text "findings=0"
	fails 7 "$C" check --simulate -- sh -c 'exit 7' 2> text
	has text "no CUDA call of any process reached culimbo"
	# a check that saw nothing is not green
	fails 98 "$C" check --simulate -- true 2> text
	has text "nothing was checked"
	"$C" check --simulate --allow-no-cuda -- true 2> text
	fails 143 "$C" check --simulate -- sh -c 'kill $$'
	fails 5 "$C" check --simulate --error-exitcode 5 -- "$P/never_closes" 2> text
	fails 127 "$C" check --simulate -- ./nothing 2> text
	fails 2 "$C" check 2> text
	# (another test's `culimbo check` may be at work: its folder goes when that ends)
	local left until=$((SECONDS + 60))
	for left in $(find /dev/shm /tmp -maxdepth 1 -name 'culimbo-check-*' -newer in 2> /dev/null); do
		while [ -e "$left" ]; do
			[ "$SECONDS" -lt "$until" ]
			sleep 0.1
		done
	done
}

@test "check: a signal that is sent to it reaches CMD" {
	"$C" check --simulate -- sh -c 'trap "echo got; exit 3" TERM; echo up; while :; do sleep 0.05; done' \
		> out 2> text 7>&- &
	checker=$!
	echo $checker > pids
	waits out up
	kill -TERM $checker
	fails 3 wait $checker
	has out got
}

# ------------------------------------------------------------ living, dead, killed
@test "culimbo report: of a living process, and after kill -9 of it and of its importer" {
	start 20 2
	"$C" report --pid "$exporter" > text
	has text "report of process $exporter (alive)"
	has text "freed, but still mapped by others (in limbo): 20, 5 KiB"
	has text "held by process $importer (many, alive), 10 blocks"
	has text "in export_at "
	has text "in consume "
	"$C" report --json > json
	valid json
	jq -e -s --argjson p "$exporter" --argjson c "$importer" '
		([.[] | select(.pid == $p and .class == "held-in-limbo")] | length == 2 and
		 all(.[]; .count == 10 and .holders[0].pid == $c and .holders[0].open_stack[0].function == "consume"))
		and any(.[]; .pid == $c and .class == "not-closed" and .count == 20)
		and all(.[]; .type != "summary" or .findings == 0 or .pid == $p)' json
	kill -9 "$exporter"
	waits_dead "$exporter"
	"$C" report --pid "$exporter" --json > json
	jq -e -s 'any(.[]; .type == "process" and .state == "dead") and
		([.[] | select(.class == "held-in-limbo") | .count] | add) == 20 and
		all(.[] | select(.class == "held-in-limbo"); .holders[0].state == "alive" and
			(.stack | any(.function == "export_at")))' json
	kill -9 "$importer"
	waits_dead "$importer"
	"$C" report > text
	has text "report of process $exporter (dead)"
	has text "report of process $importer (dead)"
	has text "held by process $importer (many, dead)"
	has text "both are dead"
	has text "TOTAL processes=2 alive=0"
}

# until `culimbo report` says that it is dead: some 100 ms
waits_dead() {
	for _ in $(seq 200); do
		"$C" report --json --all | jq -e -s --argjson p "$1" \
			'any(.[]; .type == "process" and .pid == $p and .state == "dead")' > /dev/null && return 0
		sleep 0.05
	done
	return 1
}

@test "culimbo report: nothing, a wrong pid, wrong options" {
	export CULIMBO_DIR="$D/limbo"
	"$C" report > text
	has text "nothing to report"
	fails 1 "$C" report --pid 1 2> text
	has text "process 1 has no file in $D/limbo"
	has text "CULIMBO_KEEP_DEAD" # (it may have been killed)
	fails 1 "$C" report /etc/passwd > out 2> text
	has text "/etc/passwd: there is no report of culimbo in it"
	fails 1 "$C" report - < /dev/null 2> text
	fails 2 "$C" report --pid x 2> text
	fails 2 "$C" report --top -1 2> text
	fails 2 "$C" report --min-age soon 2> text
	has text "--min-age: 'soon' is no duration"
	lacks text "default" # (which does not hold)
	fails 1 "$C" report --suppressions nowhere 2> text
	fails 1 "$C" report no-such-file 2> text
	fails 1 "$C" report . 2> text
	has text "Is a directory"
	mkdir -m 700 "$D/limbo"
	printf 'x' > "$D/limbo/exporter-0000ff"
	"$C" report 2> text
	has text " 1 file in $D/limbo could not be read"
	# what is not written is said, too
	for cmd in "$P/never_closes" true; do
		"$C" check --simulate --output /dev/full -- "$cmd" 2> text && false
		has text "cannot write to /dev/full: No space left"
	done
}

# -------------------------------------------------------------------------- large
@test "100,000 blocks: the reports appear in under 1 s and stay short" {
	export CULIMBO_STACK=40 # deep enough to tell the places apart
	start 100000 30
	begun=$(date +%s%N)
	"$C" report > live
	took=$((($(date +%s%N) - begun) / 1000000))
	# its own time: others may have the processors
	TIMEFORMAT='%U %S'
	own=$( { time "$C" report > /dev/null; } 2>&1 | awk '{ print int(($1 + $2) * 1000) }')
	lines=$(wc -l < live)
	has live "100000"
	has live "and 20 more places"
	begun=$(date +%s%N)
	echo end >&7
	wait $many
	ended=$((($(date +%s%N) - begun) / 1000000))
	exit_lines=$(wc -l < err)
	has err "100000"
	echo "# culimbo report: $took ms ($own ms of processor), $lines lines; at exit: $ended ms with all of its end, $exit_lines lines" >&3
	[ "$own" -lt 1000 ]
	[ "$ended" -lt 3000 ] && [ "$lines" -lt 600 ] && [ "$exit_lines" -lt 400 ]
}

# ----------------------------------------------------------------------- symbols
@test "code made at run time is named by its map, only its owner's" {
	export CULIMBO_DIR="$D/limbo" CULIMBO_GRACE=1h
	"$C" run --simulate -- "$P/jit" > out 2> err || :
	pid=$(cat out)
	map=/tmp/perf-$pid.map
	waits_dead "$pid"
	"$C" report --pid "$pid" > text
	has text " in export_block "
	has text "in handle_request /srv/app.py"
	"$C" report --pid "$pid" --no-symbols > text
	has text "(no file: code made at run time)"
	lacks text handle_request
	mv "$map" real && ln -s "$PWD/real" "$map"
	"$C" report --pid "$pid" > text
	lacks text handle_request
	rm -f "$map"
}

@test "a program that was rebuilt since gives no wrong names; reports at exit get theirs later" {
	cp "$P/.libs/never_closes" prog 2> /dev/null || cp "$P/never_closes" prog
	CULIMBO_DIR="$D/limbo" CULIMBO_REPORT_FILE="$PWD/rep" "$C" run --simulate -- ./prog 2> err
	for r in rep.*; do
		grep -q "never closed" "$r" && mine=$r
	done
	has "$mine" "(BuildId: "
	lacks "$mine" open_frame
	"$C" report "$mine" > text
	has text " in open_frame "
	[ "$(wc -l < text)" -eq "$(wc -l < "$mine")" ]
	cp "$P/.libs/many" prog 2> /dev/null || cp "$P/many" prog
	"$C" report "$mine" > text
	[ "$(grep -c '/prog+0x' text)" -eq "$(grep -c '/prog+0x' "$mine")" ]
	lacks text "many.c"
	cp "$P/.libs/never_closes" prog 2> /dev/null || cp "$P/never_closes" prog
	CULIMBO_DIR="$D/limbo" CULIMBO_REPORT_FORMAT=jsonl CULIMBO_REPORT_FILE="$PWD/json" \
		"$C" run --simulate -- ./prog 2> err
	"$C" report json.* > named
	valid named json.*
	jq -e -s 'any(.[]; .class == "not-closed" and .stack[0].function == "open_frame")' named
}

@test "a report that is cut short is told as far as it goes" {
	# behind the end of the last line, the one before is still in memory
	printf '%s\n%s' '{"stack":[{"module":"/x","offset":"0x10","build_id":"aa"}]}' '{"stack":[{"module":"/x"' > cut
	"$C" report cut > text
	cmp cut text
}

# ------------------------------------------------------------------- suppressions
@test "suppressions: by function, module, file; what matched; made by --gen-suppressions" {
	start 20 2
	"$C" report --gen-suppressions > made
	grep -q '^leak:^export_at\$$' made
	"$C" report --suppressions made --print-suppressions > text
	lacks text "freed, but still mapped"
	has text "suppressions that matched"
	has text "20, 5 KiB: leak:^export_at"
	for pattern in export_ 'tests/report/m*y.c' '/report/many' '^consume$'; do
		printf '# known\nleak:%s\n' "$pattern" > known
		"$C" report --suppressions known --all > text
		has text "suppressed: "
	done
	printf 'leak:no_such_function\nthread:x\nleak:^export_a$\nleak:^xport_at$\nleak:^export*x$\n' > known
	"$C" report --suppressions known > text 2> said
	has said "known, line 2 is no suppression"
	has text "freed, but still mapped"
	"$C" report --suppressions made --print-suppressions --json > json
	valid json
	jq -e -s 'any(.[]; .type == "suppressed" and .pattern == "^export_at$" and .count == 20)' json
	"$C" report --gen-suppressions --json > json
	valid json
	kill -9 "$exporter" "$importer"
}

@test "suppressions and the exit status at exit" {
	export CULIMBO_DIR="$D/limbo"
	printf 'leak:/never_closes\n' > known
	CULIMBO_SUPPRESSIONS=known CULIMBO_PRINT_SUPPRESSIONS=1 CULIMBO_REPORT=always \
		CULIMBO_REPORT_FILE=rep "$C" run --simulate -- "$P/never_closes"
	cat rep.* > text
	has text "suppressed: 2, 2 MiB (CULIMBO_SUPPRESSIONS)"
	has text "leak:/never_closes"
	lacks text "imported and never closed"
	# the list is written when it is asked for, though nothing else is to be said
	CULIMBO_SUPPRESSIONS=known CULIMBO_PRINT_SUPPRESSIONS=1 "$C" run --simulate -- "$P/never_closes" 2> text
	has text "leak:/never_closes"
	lacks text "report of process"
	"$C" check --simulate --suppressions known --print-suppressions -- "$P/never_closes" 2> text
	has text "  4, 4 MiB: leak:/never_closes"
	has text "findings=0 suppressed=4"
	lacks text "no suppression matched"
	lacks text "report of process"
	"$C" check --simulate --json --output json --suppressions known --print-suppressions -- "$P/never_closes"
	valid json
	jq -e -s 'any(.[]; .type == "suppressed" and .pattern == "/never_closes" and .count == 4)' json
	fails 42 env CULIMBO_ERROR_EXITCODE=42 CULIMBO_REPORT=off "$C" run --simulate -- "$P/never_closes"
	CULIMBO_ERROR_EXITCODE=42 "$C" run --simulate -- "$top_builddir/tests/e2e/demo" > out 2> err
	has out right
	CULIMBO_ERROR_EXITCODE=42 CULIMBO_SUPPRESSIONS=known "$C" run --simulate -- "$P/never_closes" 2> err
	# what the program has not yet written out is not lost
	[ "$(CULIMBO_ERROR_EXITCODE=42 CULIMBO_REPORT=off "$C" run --simulate -- "$top_builddir/tests/e2e/demo" --leak | wc -l)" -eq 1 ]
}

@test "check: suppressions by function and file decide, and the rest is told exactly" {
	printf 'leak:^open_frame$\n' > known
	fails 99 "$C" check --simulate --suppressions known --print-suppressions -- "$P/never_closes" 2> text
	has text "  2, 2 MiB: leak:^open_frame"
	has text "taken back from processes that ended without closing: 2, 2 MiB"
	lacks text "never closed"
	lacks text "no suppression matched"
	has text "findings=2 suppressed=2"
	[ "$(grep -c '^culimbo: SUMMARY' text)" -eq 1 ]
	[ "$(grep -c '^{' text)" -eq 0 ]
	for pattern in '^produce$' 'tests/report/never*.c' never_closes+0x; do
		printf 'leak:open_frame\nleak:%s\n' "$pattern" > known
		"$C" check --simulate --suppressions known -- "$P/never_closes" 2> text
		has text "findings=0 suppressed=4"
		[ "$(wc -l < text)" -eq 1 ]
	done
	# other processes' stacks are not a block's own: its holder opened in consume()
	printf 'leak:^open_frame$\n' > known
	fails 99 "$C" check --simulate --json --output json --suppressions known -- "$P/never_closes"
	valid json
	jq -e -s '([.[] | select(.type == "group" and .finding) | .class]) == ["reclaimed"] and
		(.[-1] | .findings == 2 and .suppressed == 2)' json
	# CMD's own end does not depend on what is known
	printf 'leak:never_closes.c\n' > known
	CULIMBO_ERROR_EXITCODE=42 "$C" check --simulate --suppressions known -- "$P/never_closes" 2> text
}

@test "check: a kind of which all is known goes with its title, the kinds beside it stay" {
	# both of one process, so in one report
	fails 99 "$C" check --simulate -- "$P/never_closes" twice 2> text
	has text "  misuse: closed what was not open (the driver's error was given): 6, 6 MiB"
	has text "  imported and never closed: 2, 2 MiB"
	has text "findings=10 suppressed=0"
	printf 'leak:^close_again$\n' > known
	fails 99 "$C" check --simulate --suppressions known -- "$P/never_closes" twice 2> text
	lacks text "  misuse:"
	has text "  imported and never closed: 2, 2 MiB"
	has text "  suppressed: 6, 6 MiB (CULIMBO_SUPPRESSIONS)"
	has text "findings=4 suppressed=6"
	# (the first of its kinds, this time)
	printf 'leak:^open_frame$\n' > known
	fails 99 "$C" check --simulate --suppressions known -- "$P/never_closes" twice 2> text
	lacks text "never closed"
	has text "  misuse: closed what was not open (the driver's error was given): 6, 6 MiB"
	has text "in close_again "
	has text "findings=8 suppressed=2"
}

@test "--suppressions with a directory is refused before CMD runs" {
	mkdir folder
	for command in check run; do
		fails 1 "$C" "$command" --simulate --suppressions folder -- touch "$command.ran" 2> text
		has text "--suppressions: folder is a directory; a file of leak:PATTERN lines is wanted"
		[ ! -e "$command.ran" ]
	done
	fails 1 "$C" report --suppressions folder 2> text
	has text "suppressions: folder is a directory; a file of leak:PATTERN lines is wanted"
}

@test "check: processes that had the same pid are told apart" {
	# as those of two PID namespaces do, whose reports go to one file
	cat > same.sh <<-'END'
		"$1"
		"$1"
		cd "${CULIMBO_REPORT_FILE%/*}" || exit 1
		env -u LD_PRELOAD sh -c 'set -- *; cat "$@" > .all; rm "$@"; mv .all 1'
		(:) # (it shared nothing, and ends after them)
		env -u LD_PRELOAD sh -c 'for one; do [ "$one" = 1 ] || { cat "$one" >> 1; rm "$one"; }; done' sh *
	END
	fails 99 "$C" check --simulate -- sh same.sh "$P/never_closes" 2> text
	has text " findings=8 suppressed=0"
	fails 99 "$C" check --simulate --json --output json -- sh same.sh "$P/never_closes"
	valid json
	jq -e -s '.[-1].findings == 8' json
	printf 'leak:never_closes\n' > known
	"$C" check --simulate --suppressions known -- sh same.sh "$P/never_closes" 2> text
	has text " findings=0 suppressed=8"
}

@test "check: what is known goes, of the rest ten places a kind are listed" {
	cat > both.sh <<-'END'
		rm -f go ready
		mkfifo go
		"$1" 40 20 < go > ready &
		exec 8> go
		until read -r _ _ importer < ready; do sleep 0.05; done 2> /dev/null
		echo end >&8
		wait
		kill -9 "$importer"
	END
	printf 'leak:^consume$\n' > known
	CULIMBO_STACK=40 fails 99 timeout 60 "$C" check --simulate --suppressions known -- \
		sh both.sh "$P/many" 2> text 3>&- 7>&-
	has text "freed, but still mapped by others (in limbo): 40, 10 KiB"
	has text "    and 10 more places: 20 of them, 5 KiB"
	[ "$(grep -c '      exported from' text)" -eq 10 ]
	lacks text "imported and never closed"
	has text "findings=40 suppressed=40"
	# a part of a kind: all but those of the place that has no call in between
	CULIMBO_STACK=40 fails 99 timeout 60 "$C" check --simulate --json --output json --suppressions known -- \
		sh both.sh "$P/many" 3>&- 7>&-
	valid json
	call=$(jq -r 'select(.class == "held-in-limbo") | .stack[1] | select(.function == "export_at") |
		.module + "+" + .offset' json | sort -u)
	printf 'leak:%s\n' "$call" >> known
	CULIMBO_STACK=40 fails 99 timeout 60 "$C" check --simulate --suppressions known -- \
		sh both.sh "$P/many" 2> text 3>&- 7>&-
	has text "freed, but still mapped by others (in limbo): 2, 512 B"
	[ "$(grep -c '      exported from' text)" -eq 1 ]
	has text "findings=2 suppressed=78"
}

@test "check and run: --gen-suppressions makes what --suppressions takes; run takes modules" {
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/never_closes"
	has made 'leak:^open_frame$'
	has made 'leak:^produce$'
	[ "$(grep -c -v -e '^leak:' -e '^#' made)" -eq 0 ]
	"$C" check --simulate --suppressions made -- "$P/never_closes" 2> text
	has text "findings=0 suppressed=4"
	fails 99 "$C" check --simulate --gen-suppressions --json --output json -- "$P/never_closes"
	valid json
	jq -e -s 'any(.[]; .type == "suppression" and .pattern == "open_frame" and .count == 2)' json
	# of those that were killed, from their files
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/is_killed"
	has made 'leak:^load_model$'
	"$C" check --simulate --suppressions made -- "$P/is_killed" 2> text
	export CULIMBO_DIR="$D/limbo"
	printf 'leak:/never_closes\n' > known
	"$C" run --simulate --suppressions known --print-suppressions -- "$P/never_closes" 2> text
	has text "  2, 2 MiB: leak:/never_closes"
	lacks text "report of process"
	fails 1 "$C" run --suppressions nowhere -- true 2> text
	has text "cannot read nowhere"
}

@test "what is younger than CULIMBO_MIN_AGE is not listed" {
	export CULIMBO_DIR="$D/limbo"
	CULIMBO_MIN_AGE=1h CULIMBO_REPORT=always CULIMBO_REPORT_FILE=rep "$C" run --simulate -- "$P/never_closes"
	cat rep.* > text
	has text "younger than CULIMBO_MIN_AGE: 2, 2 MiB"
	lacks text "imported and never closed"
}

# ---------------------------------------------------------------- where it goes
@test "CULIMBO_REPORT_FILE: %p %n %h %e %q{VAR} %%, .PID, a device, unknown letters" {
	export CULIMBO_DIR="$D/limbo" CULIMBO_REPORT=always
	JOB='a%pb' CULIMBO_REPORT_FILE='r-%n-%e-%q{JOB}-%%-%h' "$C" run --simulate -- "$P/never_closes"
	[ "$(ls r-never_closes-never_closes-a%pb-%-"$(uname -n)".* | wc -l)" -eq 2 ]
	CULIMBO_REPORT_FILE=one-%p "$C" run --simulate -- "$P/never_closes"
	[ "$(find . -name 'one-*' | grep -c 'one-[0-9]*$')" -eq 2 ]
	CULIMBO_REPORT_FILE=/dev/null "$C" run --simulate -- "$P/never_closes" 2> err
	[ ! -s err ]
	CULIMBO_REPORT_FILE='nowhere/%n-%q{JOB}' JOB=7 "$C" run --simulate -- "$P/never_closes" 2> err
	has err "cannot write the report to $PWD/nowhere/never_closes-7."
	lacks err '%n'
	CULIMBO_REPORT_FILE='x%k-%q{NONE}' "$C" run --simulate -- "$P/never_closes" 2> err
	has err '"%k" is taken as it stands'
	has err '"%q{NONE}" names a variable that is not set'
	[ "$(find . -name 'x%k-.*' | wc -l)" -eq 2 ]
}

@test "a daemon's own file that has become descriptor 2 gets neither report nor messages" {
	for when in late early; do
		rm -f own0 own1 own2
		CULIMBO_LOG=debug "$C" run --simulate -- "$P/daemon" $when 2> text
		cat own0 own1 own2
		[ "$(cat own2)" = "$(printf 'record\nrecord')" ]
		[ ! -s own0 ]
		[ ! -s own1 ]
		lacks text "SUMMARY"
		CULIMBO_REPORT_FILE=told.$when "$C" run --simulate -- "$P/daemon" $when
		has told.$when.* "freed twice"
	done
}

@test "check counts who leaves by _exit() and shares nothing, forked children too, no vfork() child" {
	# (perl's own door to it; sh as Debian's leaves so, too)
	fails 3 "$C" check --simulate -- perl -MPOSIX -e 'POSIX::_exit(3)' 2> text
	has text "CHECK processes=1 used_cuda=0"
	"$C" check --simulate --allow-no-cuda -- perl -MPOSIX -e 'fork or POSIX::_exit(0); wait; POSIX::_exit(0)' 2> text
	has text "CHECK processes=2 used_cuda=0"
	# its memory is its parent's, whose end is still to come
	"$C" check --simulate -- "$P/vforks" 2> text
	has text "CHECK processes=1 used_cuda=1"
}

@test "no CUDA call: it says so, only when asked" {
	CULIMBO_REPORT=always CULIMBO_REPORT_FILE=rep "$C" run --simulate -- true
	cat rep.* > text
	has text "no CUDA call of it reached culimbo"
	CULIMBO_REPORT=always CULIMBO_REPORT_FORMAT=jsonl CULIMBO_REPORT_FILE=json "$C" run --simulate -- true
	valid json.*
	jq -e -s 'any(.[]; .type == "process" and .cuda == false)' json.*
	[ -z "$("$C" run --simulate -- true 2>&1)" ]
}

@test "each kind of finding has a class, and each class its row, its line in the schema and in report-format.md" {
	kinds=$(sed -n '/^enum cl_finding_kind/,/^}/s/^\t\(CL_FOUND_[A-Z_]*\),.*/\1/p' "$S/shim/shm/layout.h" | grep -v NOTHING)
	classes=$(sed -n '/^enum cl_report_class /,/^}/s/^\t\(CL_REPORT_[A-Z_]*\),.*/\1/p' "$S/shim/report/report.h" | grep -v _CLASSES)
	[ "$(wc -w <<< "$kinds")" -ge 11 ]
	[ "$(wc -w <<< "$classes")" -ge 19 ]
	for kind in $kinds; do
		grep -q "\\b$kind\\b" "$S/shim/report/report.c" || { echo "no row of shim/report/report.c has $kind"; false; }
	done
	for class in $classes; do
		name=$(sed -n "s/^\t\[$class\] = { \"\([a-z-]*\)\".*/\1/p" "$S/shim/report/report.c")
		[ -n "$name" ] || { echo "no row of shim/report/report.c is of $class"; false; }
		has "$S/doc/report.schema.json" "\"$name\""
		has "$S/doc/report-format.md" "\`$name\`"
	done
}

@test "a process's name and path cannot forge a line, in text or JSON" {
	name=$'x\nculimbo: SUMMARY pid=1 "\\\e[2J\xff'
	cp "$P/.libs/never_closes" "$name" 2> /dev/null || cp "$P/never_closes" "$name"
	fails 99 "$C" check --simulate -- "./$name" 2> text
	[ "$(grep -c '^culimbo: SUMMARY' text)" -eq 2 ]
	[ "$(grep -c '^culimbo: SUMMARY pid=1 ' text)" -eq 0 ]
	lacks text $'\e'
	fails 99 "$C" check --simulate --json --output json -- "./$name"
	valid json
	[ "$(jq -s '[.[] | select(.type == "summary")] | length' json)" -eq 2 ]
	[ "$(LC_ALL=C grep -c $'[\x01-\x09\x0b-\x1f\x7f-\xff]' json)" -eq 0 ] || iconv -f UTF-8 -t UTF-8 json > /dev/null
}
