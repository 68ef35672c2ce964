#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2016
# (output and status come from bats, top_builddir from the test environment; each test is a subshell)
# What a report says of a bug, and how it looks: the stories of doc/troubleshooting.md.

load common.bash

@test "a consumer that never closes is found, with the line that opened" {
	fails 99 "$C" check --simulate -- "$P/never_closes" 2> text
	grep -Eq '^  LEAK: process [0-9]+ never closed 2 blocks \(2 MiB\) of process [0-9]+$' text
	has text "never_closes.c:$(line never_closes.c 'CHECK(cuIpcOpenMemHandle')"
	has text "HINT: call cudaIpcCloseMemHandle"
	# both sides are one finding: the culprit's open first, then its exporter's free
	frames text > shown
	diff shown - <<-END
		opened from
		open_frame
		consume
		main
		freed by
		produce
		main
	END
	[ "$(grep -c '^  [A-Z]*: ' text)" -eq 1 ]
	[ "$(wc -l < text)" -le 15 ]
	narrow text
	lacks text "BuildId"
	lacks text "waiting out"
	grep -Eq '^culimbo: SUMMARY pid=[0-9]+ imports=8 not_closed=2 findings=2$' text
	grep -Eq '^culimbo: CHECK processes=2 used_cuda=2 findings=2$' text
	fails 99 "$C" check --simulate --json --output json -- "$P/never_closes"
	valid json
	jq -e -s --argjson line "$(line never_closes.c 'CHECK(cuIpcOpenMemHandle')" 'any(.[];
		.class == "not-closed" and .count == 2 and .bytes == 2097152 and .finding and
		.stack[0].function == "open_frame" and .stack[0].line == $line and
		.stack[1].function == "consume" and .exporter.freed_ns >= 0 and
		.exporter.free_stack[0].function == "produce")' json
	jq -e -s 'any(.[]; .class == "reclaimed" and .finding == false and .told_by > 0 and .count == 2)' json
	# JSON has all frames
	jq -e -s 'any(.[]; .class == "not-closed" and (.stack | length) > 3)' json
	jq -e -s '.[-1] | .type == "check" and .processes == 2 and .killed == 0 and .findings == 2' json
}

@test "a producer that frees before its consumer opened is found" {
	export CULIMBO_GRACE=50ms
	fails 99 "$C" check --simulate -- "$P/frees_early" 2> text
	grep -Eq '^  STALE: process [0-9]+ had freed 2 blocks before process [0-9]+ opened them$' text
	lacks text " 0 B" # (of a handle alone, no size is known)
	lacks text "generation"
	unfold text | grep -Eq '^    block, refused [0-9].* ago, freed [0-9].* ago; block, .*; device 0$'
	frames text > shown
	diff shown - <<-END
		freed from
		retire_frame
		main
		refused at
		consume_frame
		main
	END
	has text "frees_early.c:$(line frees_early.c 'CHECK(cuMemFree(frame')"
	[ "$(grep -vc '^consumer: ' text)" -le 15 ]
	lacks text "no longer known"
	has text "only after the last consumer has opened it"
	narrow text
	fails 99 "$C" check --simulate --json --output json -- "$P/frees_early" 2> err
	valid json
	jq -e -s 'any(.[]; .class == "stale-refused" and .count == 2 and .other.pid > 0 and
		.stack[0].function == "consume_frame" and .other_stack[0].function == "retire_frame" and
		(.items | all(.other_ns >= .when_ns)))' json
}

@test "a producer that frees before its consumer opened is found though culimbo kept the block" {
	fails 99 "$C" check --simulate -- "$P/frees_early" 2> text
	grep -Eq '^  STALE: process [0-9]+ had freed 2 blocks \(2 MiB\) before process [0-9]+ opened them$' text
	unfold text | grep -Eq '^    0x[0-9a-f]+, 1 MiB, opened [0-9].* ago, [0-9.]+ m?s after its free; 0x.*; device 0$'
	frames text > shown
	diff shown - <<-END
		freed from
		retire_frame
		main
		opened from
		consume_frame
		main
	END
	has text "frees_early.c:$(line frees_early.c 'CHECK(cuMemFree(frame')"
	has text "CHECK processes=2 used_cuda=2 findings=2"
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
	lacks text "STALE:"
}

@test "a block that is freed while the consumer reads it is found, with the lines that freed and opened" {
	local demo="$top_builddir/tests/e2e/demo"
	at() { grep -n -F "$1" "$S/tests/e2e/demo.c" | head -1 | cut -d: -f1; }
	fails 99 "$C" check --simulate -- "$demo" > out 2> text
	has out "right: the consumer reads 17"
	grep -Eq '^  MISUSE: process [0-9]+ freed 1 block \(1 KiB\) while process [0-9]+ had it mapped$' text
	unfold text | grep -Eq '^    0x[0-9a-f]+, 1 KiB, freed .* ago, opened .* ago, mapped for [0-9.]+ [mu]?s after that: without culimbo process [0-9]+ could have read foreign bytes; device 0$'
	has text "demo.c:$(at 'CHECK(cuMemFree(shared')"
	has text "demo.c:$(at 'CHECK(cuIpcOpenMemHandle')"
	has text "HINT: free it only after process"
	narrow text
	head -10 text | grep -q "demo.c:$(at 'CHECK(cuMemFree(shared')"
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
	has text "findings=0"
}

@test "a killed consumer is found: by its exporter, and from its file" {
	fails 99 "$C" check --simulate -- "$P/is_killed" 2> text
	grep -Eq '^  KILLED: process [0-9]+ ended with 1 block \(4 MiB\) of process [0-9]+ open$' text
	grep -Eq '^    0x[0-9a-f]+, 4 MiB, opened [0-9].* ago; device 0$' text
	frames text > shown
	diff shown - <<-END
		opened from
		load_model
		main
		freed by
		share_model
		main
	END
	has text "find what killed it"
	narrow text
	lacks text "its exporter takes the memory back" # (it has ended since)
	has text "killed=1 findings=1"
	[ "$(wc -l < text)" -le 15 ]
	fails 99 "$C" check --simulate --json --output json -- "$P/is_killed"
	valid json
	jq -e -s 'any(.[]; .class == "reclaimed" and (.finding | not) and .other.name == "is_killed" and
			(.other_stack | any(.function == "share_model"))) and
		any(.[]; .class == "not-closed" and .count == 1 and .stack[0].function == "load_model") and
		any(.[]; .type == "process" and .state == "dead") and
		(.[-1] | .killed == 1 and .findings == 1)' json
}

@test "a killed consumer is found at the end of its exporter, with the line that opened" {
	export CULIMBO_DIR="$D/limbo"
	"$C" run --simulate --names -- "$P/is_killed" 2> text
	grep -Eq '^  LEAK: process [0-9]+ ended without closing 1 block \(4 MiB\) of process [0-9]+$' text
	frames text > shown
	diff shown - <<-END
		opened by
		load_model
		main
		freed from
		share_model
		main
	END
	head -10 text | grep -q 'in load_model '
	narrow text
	"$C" run --simulate -- "$P/is_killed" 2> text
	"$C" report - < text | head -10 | grep -q 'in load_model '
	CULIMBO_REPORT_FILE=json CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate -- "$P/is_killed"
	valid json.*
	jq -e -s 'any(.[]; .class == "reclaimed" and .finding and (.other.open_stack | length >= 2))' json.*
}

@test "the report's head has time, host, parent and exit status; its end has the command that adds line numbers" {
	export CULIMBO_DIR="$D/limbo"
	before=$(date -u +%FT%TZ)
	"$C" run --simulate -- "$P/never_closes" 2> text
	after=$(date -u +%FT%TZ)
	head=$(unfold text | grep -E 'report of process.*never_closes' | head -1)
	[[ $head =~ ,\ child\ of\ ([0-9]+),\ exit\ status\ 0\;\ ([-0-9T:]*Z),\ host\ $(uname -n),.*\ culimbo\ ([^ ,]*) ]]
	[[ ! ${BASH_REMATCH[2]} < $before && ! ${BASH_REMATCH[2]} > $after ]]
	[ "culimbo ${BASH_REMATCH[3]}" = "$("$C" --version)" ]
	has text "culimbo: names and lines: \`culimbo run --names\`, or this text to \`culimbo report -\`"
	# no internals, no zeros, no frames but the program's
	lacks text "generation"
	lacks text "=0"
	lacks text "libc.so"
	[ "$("$C" report - < text | grep -c ' in main ')" -ge 2 ]
	CULIMBO_FULL_STACKS=1 "$C" run --simulate -- "$P/never_closes" 2> text
	has text "libc.so"
	CULIMBO_REPORT=always CULIMBO_REPORT_FILE=json CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate -- "$P/never_closes"
	valid json.*
	jq -e -s --arg host "$(uname -n)" '[.[] | select(.type == "process")] | length == 2 and
		all(.[]; .host == $host and .ppid > 0 and .exit_status == 0 and (.version | length) > 0 and
			(.time | endswith("Z")))' json.*
	# who lives has a parent, and no exit status
	start 20 2
	"$C" report --json --pid "$importer" | jq -e -s --argjson p "$exporter" \
		'any(.[]; .type == "process" and .ppid == $p and (has("exit_status") | not))'
	kill -9 "$exporter" "$importer"
}

@test "stacks end at main(), also those that just fill CULIMBO_STACK" {
	export CULIMBO_DIR="$D/limbo"
	# five frames of the program, two of the C library, and _start
	for frames in 5 6 7 8 9 40; do
		CULIMBO_STACK=$frames CULIMBO_REPORT_FORMAT=both "$C" run --simulate -- "$P/one_place" two 2> text
		sed -n '/^  LEAK: .* never closed/,/^{/p' text > finding
		[ "$(grep -c '^      #' finding)" -eq 5 ]
		if grep '^      #' finding | grep -q 'libc\.so'; then false; fi
		# JSON has them all
		want=$((frames < 8 ? frames : 8))
		sed -n '/^{/p' text | jq -e -s --argjson want "$want" \
			'any(.[]; .class == "not-closed" and (.stack | length) == $want)'
	done
	# a command need not have the CULIMBO_STACK of the process it looks at
	CULIMBO_STACK=40 start 20 2
	"$C" report > text
	grep -q '^      #1 ' text
	if grep '^      #' text | grep -q 'libc\.so\|_start'; then false; fi
	kill -9 "$exporter" "$importer"
}

@test "stacks begin in the program's code: frames between it and the driver are left out" {
	cat > twice.py <<-'END'
		import ctypes
		cuda = ctypes.CDLL("libcuda.so.1")
		context, block, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(64)
		cuda.cuInit(0)
		cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
		cuda.cuCtxSetCurrent(context)
		cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1024))
		cuda.cuIpcGetMemHandle(handle, block)
		cuda.cuMemFree_v2(block)
		cuda.cuMemFree_v2(block)
	END
	CULIMBO_FULL_STACKS=1 fails 99 "$C" check --simulate -- python3 twice.py 2> text
	has text " freed 1 block (1 KiB) twice"
	grep -q 'libffi' text || skip "this Python has no libffi of its own"
	fails 99 "$C" check --simulate -- python3 twice.py 2> text
	has text " freed 1 block (1 KiB) twice"
	lacks text libffi
	grep -q '^      #0 ' text
}

@test "a process in another PID namespace says so" {
	unshare -r -p -f --mount-proc true 2> err || skip "no PID namespace can be made here"
	CULIMBO_DIR="$D/limbo" unshare -r -p -f --mount-proc "$C" run --simulate -- "$P/never_closes" 2> text
	unfold text | grep -Eq "report of process 2: .*, PID namespace [0-9]{10},"
}

@test "run --names: functions and lines when CMD has ended, each bug once; CMD's own status and signal" {
	export CULIMBO_DIR="$D/limbo"
	"$C" run --simulate --names -- "$P/never_closes" > out 2> text
	[ ! -s out ]
	frames text > shown
	diff shown - <<-END
		opened from
		open_frame
		consume
		main
		freed by
		produce
		main
	END
	[ "$(grep -c '^culimbo: SUMMARY' text)" -eq 1 ]
	lacks text "names and lines"
	fails 7 "$C" run --simulate --names -- sh -c '"$1"; echo "last word" >&2; exit 7' sh "$P/never_closes" 2> text
	[ "$(head -1 text)" = "last word" ]
	has text "in consume "
	fails 143 "$C" run --simulate --names -- sh -c 'kill $$' 2> text
	has text 'culimbo run: CMD (sh -c kill $$) was killed by signal 15 (Terminated)'
	[ "$(grep -c culimbo: text)" -eq 0 ] # (the shell may say that it was terminated)
	CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate --names -- "$P/never_closes" 2> json
	valid json
	jq -e -s 'any(.[]; .class == "not-closed" and .stack[0].function == "open_frame")' json
	fails 2 env CULIMBO_REPORT_FILE=x "$C" run --names -- true 2> text
	has text "not with CULIMBO_REPORT_FILE"
	# without it, CMD takes the place of the command: its process and its parent are as they were
	[ "$(sh -c 'echo $$; exec "$1" run -- sh -c "echo \$\$"' sh "$C" | uniq | wc -l)" -eq 1 ]
}

@test "run becomes CMD; with --names it is CMD's parent, which only waits, and adopts nobody" {
	mkfifo to from
	exec 6<> from 7<> to # both ends, so that no open waits
	# shellcheck disable=SC2016 # the inner shell's
	in_shell='echo $$ $PPID > from; read -r line; exit 3'
	"$C" run --simulate -- sh -c "$in_shell" < to &
	started=$!
	read -r -t 60 pid parent <&6
	[ "$pid" -eq "$started" ]
	[ "$parent" -eq $$ ] || [ "$parent" -eq "$BASHPID" ]
	echo >&7
	fails 3 wait "$started"
	"$C" run --simulate --names -- sh -c "$in_shell" < to &
	started=$!
	read -r -t 60 pid parent <&6
	[ "$parent" -eq "$started" ]
	switches() { awk '/ctxt_switches/ { n += $2 } END { print n }' "/proc/$started/status"; }
	waits() { grep -q '^State:.*S' "/proc/$started/status"; }
	for _ in $(seq 1000); do waits && break; done
	before=$(switches)
	sleep 0.5 # there is nothing to wait for: that nothing happens is to be seen
	[ "$(switches)" -eq "$before" ]
	kill -TERM "$started"
	fails 143 wait "$started"
	if kill -0 "$pid"; then false; fi
	# who has lost its parent gets the one that it would have got without culimbo
	cat > orphan.sh <<-'END'
		parent() { cut -d' ' -f4 "/proc/$$/stat"; }
		while [ "$(parent)" = "$1" ]; do :; done
		parent > from
	END
	# shellcheck disable=SC2016
	"$C" run --simulate --names -- sh -c 'sh -c "sh orphan.sh \$\$ &"; read -r line' < to &
	started=$!
	read -r -t 60 parent <&6
	[ "$parent" -ne "$started" ]
	echo >&7
	wait "$started"
}

@test "colours: on a terminal, as requested, never with NO_COLOR nor into a file" {
	export CULIMBO_DIR="$D/limbo"
	red=$'\e[1;31m' plain=$'\e[0m'
	for how in "check --simulate" "run --simulate"; do
		# shellcheck disable=SC2086
		script -qec "$C $how -- $P/never_closes" /dev/null > text < /dev/null || :
		grep -Eq "^  ${red//[/\\[}LEAK: process [0-9]+ never closed .*${plain//[/\\[}" text
		NO_COLOR=1 script -qec "$C $how -- $P/never_closes" /dev/null > text < /dev/null || :
		has text "LEAK: "
		lacks text $'\e'
		# shellcheck disable=SC2086
		"$C" $how -- "$P/never_closes" 2> text || :
		has text "LEAK: "
		lacks text $'\e'
		# shellcheck disable=SC2086
		CULIMBO_COLOR=always "$C" $how -- "$P/never_closes" 2> text || :
		has text "${red}LEAK: "
	done
	fails 99 "$C" check --simulate --color always -- "$P/never_closes" 2> text
	has text "${red}LEAK: "
	fails 99 "$C" check --simulate --color always --output text -- "$P/never_closes"
	has text "${red}LEAK: " # (as told)
	CULIMBO_COLOR=always fails 99 "$C" check --simulate --color never -- "$P/never_closes" 2> text
	lacks text $'\e'
	fails 2 "$C" check --color green -- true 2> text
	has text "--color: 'green' is none of auto, always, never"
}

@test "a directory that others may write to: the message and the HINT say so, with advice" {
	mkdir -m 777 "$D/limbo"
	chmod 777 "$D/limbo"
	CULIMBO_DIR="$D/limbo" "$C" run --simulate -- "$P/never_closes" 2> text
	has text "exporter file in $D/limbo: others may write to it (chmod 700 mends that)"
	has text "\`culimbo doctor\` says what to do"
	has text "    HINT: others may write to the directory of exporter files (CULIMBO_DIR)"
	lacks text "Operation not permitted"
	lacks text "ake room"
}

@test "a process's name and path cannot forge a line, in text or JSON" {
	name=$'x\nculimbo: SUMMARY pid=1 "\\\e[2J\xff'
	cp "$P/.libs/never_closes" "$name" 2> /dev/null || cp "$P/never_closes" "$name"
	fails 99 "$C" check --simulate -- "./$name" 2> text
	[ "$(grep -c '^culimbo: SUMMARY' text)" -eq 1 ]
	[ "$(grep -c '^culimbo: SUMMARY pid=1 ' text)" -eq 0 ]
	lacks text $'\e'
	fails 99 "$C" check --simulate --json --output json -- "./$name"
	valid json
	[ "$(jq -s '[.[] | select(.type == "summary")] | length' json)" -eq 2 ]
	[ "$(LC_ALL=C grep -c $'[\x01-\x09\x0b-\x1f\x7f-\xff]' json)" -eq 0 ] || iconv -f UTF-8 -t UTF-8 json > /dev/null
}

@test "the head names the container, which its cgroup tells" {
	local own id=0123456789abcdef group
	own=$(sed -n 's/.*:memory://p;s/^0:://p' /proc/self/cgroup | head -1)
	grep -q ':memory:' /proc/self/cgroup && group=/sys/fs/cgroup/memory$own || group=/sys/fs/cgroup$own
	group=$group/$id$id$id$id
	mkdir "$group" 2> /dev/null || skip "no cgroup can be made here"
	printf '#!/bin/sh\necho $$ > %s/cgroup.procs\nexec "$@"\n' "$group" > inside
	CULIMBO_DIR="$D/limbo" sh inside "$C" run --simulate -- "$P/never_closes" 2> text
	CULIMBO_DIR="$D/limbo" CULIMBO_REPORT_FORMAT=jsonl sh inside "$C" run --simulate -- "$P/never_closes" 2> json
	for _ in $(seq 100); do
		rmdir "$group" && break
		sleep 0.05
	done
	unfold text | grep -Eq "^culimbo: report of process .*, host $(uname -n), container 0123456789ab, culimbo "
	jq -e -s 'any(.[]; .type == "process" and .container == "0123456789ab")' json
	valid json
}

@test "a block of 2 MiB and more that is freed while it is mapped: what the driver does is said" {
	fails 99 "$C" check --simulate -- "$P/one_place" made 2> text
	narrow text
	unfold text | grep -Eq "^    0x[0-9a-f]+, 4 MiB, freed .* ago, opened .* ago, mapped for [0-9.]+ [mu]?s after that: undefined by CUDA's documentation; this driver keeps the bytes; device 0$"
	lacks text "could have read foreign bytes"
}
