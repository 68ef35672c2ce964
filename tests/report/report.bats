#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2016
# (output and status come from bats, top_builddir from the test environment; each test is a subshell)
# The report of programs with a bug, as a user sees it: culimbo check, culimbo report, their options.

load common.bash

# ----------------------------------------------------------------- culimbo check
@test "check: CMD's own status and signal, no findings, no CUDA, leftover files" {
	CULIMBO_STRICT=0 "$C" check --simulate -- "$top_builddir/tests/e2e/demo" > out 2> text
	has out "right: the consumer reads 17"
	has text "findings=0"
	fails 7 "$C" check --simulate -- sh -c 'exit 7' 2> text
	has text "no CUDA call of any process reached culimbo"
	# a check that saw nothing is not green
	fails 98 "$C" check --simulate -- true 2> text
	has text "nothing was checked"
	lacks text "Without a GPU, --simulate"
	fails 98 "$C" check -- true 2> text
	has text "Without a GPU, --simulate"
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
@test "culimbo report: for a live process, and after kill -9 of it and of its importer" {
	start 20 2
	"$C" report --pid "$exporter" > text
	has text "report of process $exporter (alive)"
	[ "$(grep -c "^  HELD: process $importer still maps 10 blocks (2.5 KiB) that process $exporter has freed$" text)" -eq 2 ]
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
	# both are dead: each leak is told once, by the importer
	"$C" report > text
	has text "report of process $importer (dead)"
	lacks text "report of process $exporter (dead)"
	[ "$(grep -c "^  KILLED: process $importer ended with [0-9]* blocks* (.*) of process $exporter open" text)" -gt 0 ]
	has text "freed by process $exporter from"
	has text "TOTAL processes=2 alive=0 findings=20"
	"$C" report --pid "$exporter" > text
	has text "held by process $importer (many, dead)"
	has text "both are dead"
}

@test "culimbo report: nothing, a wrong pid, wrong options" {
	export CULIMBO_DIR="$D/limbo"
	"$C" report > text
	has text "nothing to report"
	fails 1 "$C" report --pid 1 2> text
	has text "process 1 has no file in $D/limbo"
	has text "CULIMBO_KEEP_DEAD" # (it may have been killed)
	fails 1 "$C" report /etc/passwd > out 2> text
	has text "/etc/passwd: it has no culimbo report in it"
	[ ! -s out ] # nothing of its contents
	fails 1 "$C" report - < /dev/null 2> text
	fails 2 "$C" report --pid x 2> text
	fails 2 "$C" report --top -1 2> text
	fails 2 "$C" report --min-age soon 2> text
	has text "--min-age: 'soon' is not a duration"
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

# --------------------------------------------------------------- CULIMBO_GRACE_BYTES
# early SIZE: reports of a producer that frees two frames of 2 MiB before they are opened; text and JSON
early() {
	export CULIMBO_GRACE_BYTES=$1 CULIMBO_REPORT=always
	"$C" run --simulate -- "$P/frees_early" 2097152 2> text
	CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate -- "$P/frees_early" 2097152 2> both
	grep '^{' both > json # (the program, too, writes to stderr)
	valid json
}

# cut_is BLOCKS BYTES: what the summaries of all processes say
cut_is() {
	jq -e -s --argjson n "$1" --argjson bytes "$2" '[.[] | select(.type == "summary")] |
		(map(.cut // 0) | add) == $n and (map(.cut_bytes // 0) | add) == $bytes' json
}

@test "blocks that went before their grace was over are counted, with their bytes" {
	# the second free needs the room of the first block
	early 2MiB
	has text "  given back before their grace was over: 1, 2 MiB (CULIMBO_GRACE_BYTES)"
	has text " cut=1 cut_bytes=2097152 "
	cut_is 1 2097152
	# a block that the budget has no room for goes at its free
	early 1KiB
	has text "  given back before their grace was over: 2, 4 MiB (CULIMBO_GRACE_BYTES)"
	has text " cut=2 cut_bytes=4194304 "
	cut_is 2 4194304
	early 4MiB
	lacks text "before their grace was over"
	lacks text " cut"
	cut_is 0 0
}

# -------------------------------------------------------------------------- large
@test "100,000 blocks: the reports appear in under 1 s and stay short" {
	export CULIMBO_STACK=40 # deep enough to tell the places apart
	start 100000 30
	begun=$(date +%s%N)
	"$C" report > live
	took=$((($(date +%s%N) - begun) / 1000000))
	# its own time, since others may have the processors; what is slow is so each time
	TIMEFORMAT='%U %S'
	own=$(for _ in 1 2 3; do { time "$C" report > /dev/null; } 2>&1; done |
		awk '{ ms = int(($1 + $2) * 1000); if (NR == 1 || ms < least) least = ms } END { print least }')
	lines=$(wc -l < live)
	has live "100000"
	has live "and 20 more places"
	# its processor time at the end: that of its whole life, which this shell has after its end, without that of before
	before=$(awk -v tick="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($12 + $13) * 1000 / tick) }' "/proc/$many/stat")
	times > times
	begun=$(date +%s%N)
	echo end >&7
	wait $many
	wall=$((($(date +%s%N) - begun) / 1000000))
	times >> times
	ended=$(awk -F '[ms ]+' -v before="$before" 'NR % 2 == 0 { at[NR] = ($1 * 60 + $2 + $3 * 60 + $4) * 1000 }
		END { print int(at[4] - at[2] - before) }' times)
	exit_lines=$(wc -l < err)
	has err "100000"
	echo "# culimbo report: $took ms ($own ms of processor), $lines lines; at exit: $wall ms ($ended ms of processor) with all of its end, $exit_lines lines" >&3
	[ "$own" -lt 1000 ]
	[ "$wall" -lt 3000 ] && [ "$ended" -ge 0 ] && [ "$ended" -lt 600 ] && [ "$lines" -lt 600 ] && [ "$exit_lines" -lt 400 ]
}

# ----------------------------------------------------------------------- symbols
@test "code made at run time is named from its perf map, only when its owner wrote it" {
	export CULIMBO_DIR="$D/limbo" CULIMBO_GRACE=1h
	"$C" run --simulate -- "$P/jit" > out 2> err || :
	pid=$(cat out)
	map=/tmp/perf-$pid.map
	waits_dead "$pid"
	# what only waits out its grace is not told unless all is wanted
	"$C" report --pid "$pid" > text
	lacks text "WAITED"
	lacks text "nothing to do"
	"$C" report --pid "$pid" --all > text
	has text "  WAITED: 1 block "
	has text " in export_block "
	has text "in handle_request /srv/app.py"
	"$C" report --pid "$pid" --all --no-symbols > text
	has text "(no file: code made at run time)"
	lacks text handle_request
	mv "$map" real && ln -s "$PWD/real" "$map"
	"$C" report --pid "$pid" --all > text
	has text "WAITED"
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
	# but for the line that says how to get the names
	has "$mine" "culimbo: names and lines: culimbo report $PWD/$mine"
	lacks text "names and lines"
	[ "$(wc -l < text)" -eq "$(($(wc -l < "$mine") - 1))" ]
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

@test "source files, Python's too, are named from the current directory where that is shorter" {
	open=$(line never_closes.c 'CHECK(cuIpcOpenMemHandle')
	load=$(line trainer.py 'check(cuda.cuIpcOpenMemHandle')
	mkdir far
	for from in "$PWD/far" "$S/tests/report" "$S/tests/tools"; do
		here=$PWD
		cd "$from"
		"$C" check --simulate --output "$here/c" -- "$P/never_closes" || [ $? -eq 99 ]
		"$C" check --simulate --output "$here/python" -- python3 "$S/tests/report/trainer.py" || [ $? -eq 99 ]
		cd "$here"
		case $from in
		*/report) before= ;;
		*/tools) before=../report/ ;;
		*/far) before=$(realpath "$S")/tests/report/ ;;
		esac
		has python "#0 load_batch (${before}trainer.py:$load)"
		# a build that was configured by a relative path has that in its debug information
		[ "$from" != "$PWD/far" ] || compiled=$(grep -o ' in open_frame /.*/never_closes.c' c | head -1)
		case $compiled in
		*/../*) ;;
		*) has c " in open_frame ${before}never_closes.c:$open" ;;
		esac
	done
	"$C" check --simulate --json --output json -- python3 "$S/tests/report/trainer.py" || [ $? -eq 99 ]
	jq -e -s --arg file "$S/tests/report/trainer.py" 'any(.[]; .stack_python[0]?.file == $file)' json
}

@test "a source file that was compiled by a relative name is named as any other" {
	mkdir -p tree/out far
	cp "$S/tests/report/never_closes.c" "$S/tests/report/bug.h" tree
	open=$(line never_closes.c 'CHECK(cuIpcOpenMemHandle')
	for version in 4 5; do
		# shellcheck disable=SC2086 # several words
		(cd tree/out && $CC $(sed -n 's/^CUDA_CPPFLAGS = //p' "$top_builddir/Makefile") -gdwarf-$version -O0 -o never ../never_closes.c \
			"$top_builddir/tools/sim/.libs/libcuda.so.1")
		(cd far && "$C" check --simulate --output ../text -- ../tree/out/never) || [ $? -eq 99 ]
		has text " in open_frame ../tree/never_closes.c:$open"
		"$C" check --simulate --output text -- tree/out/never || [ $? -eq 99 ]
		has text " in open_frame tree/never_closes.c:$open"
		GITHUB_WORKSPACE=$(realpath .) "$C" check --simulate --format=github --output text -- tree/out/never || [ $? -eq 99 ]
		grep -q "^::error file=tree/never_closes.c,line=$open," text
	done
}

@test "a truncated report is shown as far as it goes" {
	# behind the end of the last line, the one before is still in memory
	printf '%s\n%s' '{"stack":[{"module":"/x","offset":"0x10","build_id":"aa"}]}' '{"stack":[{"module":"/x"' > cut
	"$C" report cut > text
	cmp cut text
}

# ------------------------------------------------------------------- suppressions
@test "suppressions: by function, module, file; the matched ones; generated by --gen-suppressions" {
	start 20 2
	"$C" report --gen-suppressions > made
	# the consumer's place, of both its sides, and none of the producer's
	[ "$(grep -c '^held-in-limbo:stack:^consume\$' made)" -eq 2 ]
	[ "$(grep -c '^not-closed:stack:^consume\$' made)" -eq 1 ]
	[ "$(grep -c -v '^#' made)" -eq 3 ]
	lacks made 'stack:^main$'
	lacks made libc
	"$C" report --suppressions made --print-suppressions > text
	lacks text "still maps"
	has text "suppressions that matched"
	has text "20, 5 KiB: held-in-limbo:stack:^consume"
	has text "20, 5 KiB: not-closed:stack:^consume"
	# of processes that live no block is a finding, so none is taken off their number
	has text "TOTAL processes=2 alive=2 findings=0 suppressed=40"
	for pattern in export_ 'tests/report/m*y.c' '/report/many' '^consume$'; do
		printf '# known\nleak:%s\n' "$pattern" > known
		"$C" report --suppressions known --all > text
		has text "suppressed: "
	done
	printf 'leak:no_such_function\nthread:x\nleak:^export_a$\nleak:^xport_at$\nleak:^export*x$\n' > known
	"$C" report --suppressions known > text 2> said
	has said "known, line 2 is no suppression"
	has text "still maps"
	"$C" report --suppressions made --print-suppressions --json > json
	valid json
	jq -e -s 'any(.[]; .type == "suppressed" and .stack and (.pattern | startswith("^consume$")) and .class == "held-in-limbo" and .count == 20)' json
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
	lacks text "never closed"
	# the list is written when it is asked for, though nothing else is to be said
	CULIMBO_SUPPRESSIONS=known CULIMBO_PRINT_SUPPRESSIONS=1 "$C" run --simulate -- "$P/never_closes" 2> text
	has text "leak:/never_closes"
	lacks text "report of process"
	"$C" check --simulate --suppressions known --print-suppressions -- "$P/never_closes" 2> text
	has text "  2, 2 MiB: leak:/never_closes"
	has text "findings=0 suppressed=2"
	lacks text "no suppression matched"
	lacks text "report of process"
	"$C" check --simulate --json --output json --suppressions known --print-suppressions -- "$P/never_closes"
	valid json
	jq -e -s 'any(.[]; .type == "suppressed" and .pattern == "/never_closes" and .count == 2)' json
	fails 42 env CULIMBO_ERROR_EXITCODE=42 CULIMBO_REPORT=off "$C" run --simulate -- "$P/never_closes"
	CULIMBO_ERROR_EXITCODE=42 "$C" run --simulate -- "$top_builddir/tests/e2e/demo" > out 2> err
	has out right
	CULIMBO_ERROR_EXITCODE=42 CULIMBO_SUPPRESSIONS=known "$C" run --simulate -- "$P/never_closes" 2> err
	# what the program has not yet written out is not lost
	[ "$(CULIMBO_ERROR_EXITCODE=42 CULIMBO_REPORT=off "$C" run --simulate -- "$top_builddir/tests/e2e/demo" --leak | wc -l)" -eq 1 ]
}

@test "check: suppressions by function and file decide, and the remaining findings are exact" {
	# one bug is one finding: its exporter's side goes with the importer's, whose stacks decide
	for pattern in '^open_frame$' 'tests/report/never*.c' never_closes+0x; do
		printf 'leak:%s\n' "$pattern" > known
		"$C" check --simulate --suppressions known --print-suppressions -- "$P/never_closes" 2> text
		has text "  2, 2 MiB: leak:$pattern"
		has text "findings=0 suppressed=2"
		[ "$(wc -l < text)" -eq 3 ]
	done
	printf 'leak:^produce$\n' > known
	fails 99 "$C" check --simulate --suppressions known -- "$P/never_closes" 2> text
	has text "never closed 2 blocks (2 MiB)"
	has text "findings=2"
	lacks text "suppressed"
	[ "$(grep -c '^culimbo: SUMMARY' text)" -eq 1 ]
	[ "$(grep -c '^{' text)" -eq 0 ]
	fails 99 "$C" check --simulate --json --output json --suppressions known -- "$P/never_closes"
	valid json
	jq -e -s '([.[] | select(.type == "group" and .finding) | .class]) == ["not-closed"] and
		(.[-1] | .findings == 2 and .suppressed == 0)' json
	# CMD's own end does not depend on what is known
	printf 'leak:never_closes.c\n' > known
	CULIMBO_ERROR_EXITCODE=42 "$C" check --simulate --suppressions known -- "$P/never_closes" 2> text
}

@test "check: a kind whose findings are all suppressed disappears with its title, other kinds stay" {
	# both of one process, so in one report
	fails 99 "$C" check --simulate -- "$P/never_closes" twice 2> text
	has text " closed 6 blocks (6 MiB) once more than it had opened them"
	has text " never closed 2 blocks (2 MiB) of "
	grep -q '^culimbo: CHECK .* findings=8$' text
	printf 'leak:^close_again$\n' > known
	fails 99 "$C" check --simulate --suppressions known -- "$P/never_closes" twice 2> text
	lacks text "  MISUSE:"
	has text " never closed 2 blocks (2 MiB) of "
	has text "  suppressed: 6, 6 MiB (CULIMBO_SUPPRESSIONS)"
	has text "findings=2 suppressed=6"
	# (the first of its kinds, this time)
	printf 'leak:^open_frame$\n' > known
	fails 99 "$C" check --simulate --suppressions known -- "$P/never_closes" twice 2> text
	lacks text "never closed"
	has text " closed 6 blocks (6 MiB) once more than it had opened them"
	has text "in close_again "
	has text "findings=6 suppressed=2"
}

@test "--suppressions with a directory is refused before CMD runs" {
	mkdir folder
	for command in check run; do
		fails 1 "$C" "$command" --simulate --suppressions folder -- touch "$command.ran" 2> text
		has text "--suppressions: folder is a directory; a file of CLASS:stack:PATTERN lines is wanted"
		[ ! -e "$command.ran" ]
	done
	fails 1 "$C" report --suppressions folder 2> text
	has text "suppressions: folder is a directory; a file of CLASS:stack:PATTERN lines is wanted"
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
	grep -q '^culimbo: CHECK .* findings=4$' text
	fails 99 "$C" check --simulate --json --output json -- sh same.sh "$P/never_closes"
	valid json
	jq -e -s '.[-1].findings == 4' json
	printf 'leak:never_closes\n' > known
	"$C" check --simulate --suppressions known -- sh same.sh "$P/never_closes" 2> text
	has text " findings=0 suppressed=4"
}

@test "check: suppressed findings are left out, and ten places of each kind are listed" {
	cat > both.sh <<-'END'
		rm -f go ready
		mkfifo go
		"$1" 40 20 < go > ready &
		exec 8> go
		until read -r _ _ importer < ready; do sleep 0.05; done 2> /dev/null
		echo end >&8
		wait
		kill -9 "$importer"
		# without its file, the exporter's side is all that is known
		rm "$CULIMBO_DIR"/exporter-*
	END
	printf 'leak:^consume$\n' > known
	CULIMBO_STACK=40 fails 99 timeout 60 "$C" check --simulate --suppressions known -- \
		sh both.sh "$P/many" 2> text 3>&- 7>&-
	has text "still maps 2 blocks (512 B) that "
	has text "  and 10 more places: 20 of them, 5 KiB"
	[ "$(grep -c '^    exported from' text)" -eq 10 ]
	[ "$(grep -c 'HINT' text)" -eq 1 ]
	grep -q "^culimbo: CHECK .* findings=40$" text
	# a part of a kind: all but those of the place that has no call in between
	CULIMBO_STACK=40 fails 99 timeout 60 "$C" check --simulate --json --output json --suppressions known -- \
		sh both.sh "$P/many" 3>&- 7>&-
	valid json
	call=$(jq -r 'select(.class == "held-in-limbo") | .stack[1] | select(.function == "export_at") |
		.module + "+" + .offset' json | sort -u)
	printf 'leak:%s\n' "$call" >> known
	CULIMBO_STACK=40 fails 99 timeout 60 "$C" check --simulate --suppressions known -- \
		sh both.sh "$P/many" 2> text 3>&- 7>&-
	has text "still maps 2 blocks (512 B) that "
	[ "$(grep -c '^    exported from' text)" -eq 1 ]
	has text "findings=2 suppressed=38"
}

@test "check and run: --suppressions accepts the output of --gen-suppressions; run accepts modules" {
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/never_closes"
	has made 'not-closed:stack:^open_frame$;^consume$;^main$'
	lacks made 'stack:^produce$' # (the other side of the same bug)
	[ "$(grep -c -v -e '^not-closed:stack:' -e '^#' made)" -eq 0 ]
	"$C" check --simulate --suppressions made -- "$P/never_closes" 2> text
	has text "findings=0 suppressed=2"
	fails 99 "$C" check --simulate --gen-suppressions --json --output json -- "$P/never_closes"
	valid json
	jq -e -s 'any(.[]; .type == "suppression" and .stack and .pattern == "^open_frame$;^consume$;^main$" and .count == 2)' json
	# of those that were killed, from their files
	fails 99 "$C" check --simulate --gen-suppressions --output made -- "$P/is_killed"
	has made 'stack:^load_model$;^main$'
	"$C" check --simulate --suppressions made -- "$P/is_killed" 2> text
	export CULIMBO_DIR="$D/limbo"
	printf 'leak:/never_closes\n' > known
	"$C" run --simulate --suppressions known --print-suppressions -- "$P/never_closes" 2> text
	has text "  2, 2 MiB: leak:/never_closes"
	lacks text "report of process"
	fails 1 "$C" run --suppressions nowhere -- true 2> text
	has text "cannot read nowhere"
}

@test "findings younger than CULIMBO_MIN_AGE are not listed" {
	export CULIMBO_DIR="$D/limbo"
	CULIMBO_MIN_AGE=1h CULIMBO_REPORT=always CULIMBO_REPORT_FILE=rep "$C" run --simulate -- "$P/never_closes"
	cat rep.* > text
	has text "younger than CULIMBO_MIN_AGE: 2, 2 MiB"
	lacks text "never closed"
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
		has told.$when.* "freed 1 block (1 KiB) twice"
	done
}

@test "check counts processes that end by _exit() and share nothing, also forked children, but no vfork() child" {
	# (perl's own door to it; sh as Debian's leaves so, too)
	fails 3 "$C" check --simulate -- perl -MPOSIX -e 'POSIX::_exit(3)' 2> text
	has text "CHECK processes=1 used_cuda=0"
	"$C" check --simulate --allow-no-cuda -- perl -MPOSIX -e 'fork or POSIX::_exit(0); wait; POSIX::_exit(0)' 2> text
	has text "CHECK processes=2 used_cuda=0"
	# its memory is its parent's, whose end is still to come
	"$C" check --simulate -- "$P/vforks" 2> text
	has text "CHECK processes=1 used_cuda=1"
}

@test "no CUDA call: the report says so, only when requested" {
	CULIMBO_REPORT=always CULIMBO_REPORT_FILE=rep "$C" run --simulate -- true
	cat rep.* > text
	grep -Eqx 'culimbo: report of process [0-9]+ \(true\): no CUDA call of it reached culimbo \(`culimbo doctor`\)' text
	[ "$(wc -l < text)" -eq 1 ]
	CULIMBO_REPORT=always CULIMBO_REPORT_FORMAT=jsonl CULIMBO_REPORT_FILE=json "$C" run --simulate -- true
	valid json.*
	jq -e -s 'any(.[]; .type == "process" and .cuda == false)' json.*
	[ -z "$("$C" run --simulate -- true 2>&1)" ]
}

@test "each kind of finding has a class, and each class its row, its line in the schema and in report-format.md" {
	kinds=$(sed -n '/^enum cl_finding_kind/,/^}/s/^\t\(CL_FINDING_[A-Z_]*\),.*/\1/p' "$S/shim/shm/layout.h" | grep -v NONE)
	classes=$(sed -n '/^enum cl_report_class /,/^}/s/^\t\(CL_REPORT_[A-Z_]*\),.*/\1/p' "$S/shim/report/report.h" | grep -v _CLASSES)
	[ "$(wc -w <<< "$kinds")" -ge 11 ]
	[ "$(wc -w <<< "$classes")" -ge 19 ]
	for kind in $kinds; do
		grep -q "\\b$kind\\b" "$S/shim/report/classes.c" || { echo "no row of shim/report/classes.c has $kind"; false; }
	done
	for class in $classes; do
		name=$(sed -n "s/^\t\[$class\] = { \"\([a-z-]*\)\".*/\1/p" "$S/shim/report/classes.c")
		[ -n "$name" ] || { echo "no row of shim/report/classes.c is of $class"; false; }
		has "$S/doc/report.schema.json" "\"$name\""
		has "$S/doc/report-format.md" "\`$name\`"
	done
}

@test "a program uses culimbo.h: it collects, gets a report, and gets the counts" {
	CULIMBO_GRACE=0 CULIMBO_COLLECTOR=inline CULIMBO_REPORT=off CULIMBO_DIR="$D/limbo" \
		"$C" run --simulate -- "$P/asks" nothing early text json > said 2> err
	[ ! -s err ] || {
		cat err
		false
	}
	cat > want << 'EOF'
report nothing: 0
collect: 0
before: result 0, exports 0 opens 0 kept 0 returned 0 (0 bytes) limbo 0 held 0 (0 bytes) open 0 dead 0 findings 0
consumer: opens 1, open 1, 4194304 bytes
held: result 0, exports 1 opens 0 kept 1 returned 0 (0 bytes) limbo 1 held 1 (4194304 bytes) open 0 dead 0 findings 0
collect: 0
report early: 0
report text: 0
report json: 0
wrong: -22 -9 -22 -22
short: 0, 1 and 7
long: 1 and 0
collect: 1
after: result 0, exports 1 opens 0 kept 1 returned 1 (4194304 bytes) limbo 0 held 0 (0 bytes) open 0 dead 1 findings 1
EOF
	diff <(sort want) <(sort said)
	has nothing "it shared no GPU memory"
	has early "exported, none ever opened under culimbo: 1"
	# while its grace runs somebody may be about to open it
	CULIMBO_REPORT=off CULIMBO_DIR="$D/limbo" "$C" run --simulate -- "$P/asks" nothing early text json > said
	has early "exported, not freed, held by nobody: 1"
	lacks early "none ever opened"
	CULIMBO_REPORT=off CULIMBO_GRACE=0 CULIMBO_COLLECTOR=inline CULIMBO_DIR="$D/limbo" \
		"$C" run --simulate -- "$P/asks" nothing early text json > said
	has text "4 MiB"
	has text "asks.c:$(line asks.c 'CHECK(cuMemFree')" || "$C" report text > named
	valid json
	jq -e -s 'any(.[]; .type == "summary" and .exports == 1 and .limbo_bytes == 4194304)' json
}
