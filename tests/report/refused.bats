#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031
# (output and status come from bats, top_builddir from the test environment; each test is a subshell)
# What CUDA refuses to share, and what is shared by descriptors: notes, in every place that shows them.

load common.bash

# begins WORD...: `refused`, in the background, until it has asked for all handles; ${program}
begins() {
	export CULIMBO_DIR="$D/limbo"
	"$C" run --simulate -- "$P/refused" "$@" < in > out 2> err 7>&- &
	program=$!
	echo $program > pids
	for _ in $(seq 600); do
		[ -s out ] && return 0
		sleep 0.05
	done
	cat err
	return 1
}

ends() {
	echo end >&7
	wait "$program"
}

@test "a refusal is a note: of what, how much, from where, and what would share it" {
	begins
	"$C" report --pid "$program" > text
	has text "REFUSED: CUDA makes no legacy handle of virtual memory without a handle type: process $program asked 5 times (10 MiB), error 1"
	has text ", 2 MiB, refused "
	has text "; and 4 more; device 0"
	has text "REFUSED: CUDA makes no legacy handle of virtual memory: process $program asked once (2 MiB), error 1"
	has text "REFUSED: CUDA makes no legacy handle of stream-ordered memory: process $program asked once (3 MiB), error 1"
	has text "REFUSED: CUDA makes no legacy handle of managed memory: process $program asked once (1 MiB), error 1"
	has text "REFUSED: CUDA makes no legacy handle of host memory: process $program asked once (512 KiB), error 1"
	has text "REFUSED: CUDA makes no legacy handle of memory that the driver does not know: process $program asked once, error 1"
	has text "REFUSED: CUDA did not open memory of another process: process $program asked once, error 1"
	has text "in try_to_share "
	has text "in try_to_open "
	has text "refused.c:$(line refused.c 'try_to_share(pooled')"
	has text "HINT: CUDA shares virtual memory by descriptors alone"
	has text "HINT: it was made for no way of sharing: give cuMemCreate the requestedHandleTypes"
	has text "HINT: allocate it with cudaMalloc (PyTorch: without backend:cudaMallocAsync)"
	lacks text "LEAK"
	has text "refused_by_cuda=11 findings=0"
	"$C" report --pid "$program" --json > json
	valid json
	jq -e -s 'all(.[] | select(.class == "refused"); .finding == false and .result == 1 and .kind == "memory") and
		([.[] | select(.class == "refused") | [.memory, .count, .bytes]] | sort) == [["device", 1, 0],
			["host", 1, 524288], ["managed", 1, 1048576], ["pool", 1, 3145728], ["unknown", 1, 0],
			["virtual", 1, 2097152], ["virtual-alone", 5, 10485760]] and
		any(.[]; .class == "refused" and .memory == "pool" and .call == "cuIpcGetMemHandle" and
			any(.stack[]; .function == "try_to_share")) and
		any(.[]; .class == "refused" and .call == "cuIpcOpenMemHandle") and
		any(.[]; .type == "summary" and .refused_by_cuda == 11 and .findings == 0)' json
	"$C" ps > text
	grep -E "REFUSED *$" text
	grep -E "^ *$program .* 11 *$" text
	[ "$("$C" show "$program" --json | jq .refused_by_cuda)" = 11 ]
	"$C" doctor --simulate > text || cat text
	has text "ok    refused       CUDA makes no legacy handle of virtual memory without a handle type: process $program asked 5 times"
	has text "-> it was made for no way of sharing"
	ends
	# libraries probe: at its end it says nothing, and the job is well
	[ ! -s err ]
	"$C" check --simulate -- "$P/refused" < /dev/null > out 2> text
	has text "findings=0"
}

@test "refusals are logged at info, once for each kind of memory, and listed at exit if a report is wanted" {
	CULIMBO_LOG=info CULIMBO_REPORT=always "$C" run --simulate -- "$P/refused" < /dev/null > out 2> text
	[ "$(grep -c "info: CUDA refused" text)" -eq 7 ]
	[ "$(grep -c "info: CUDA refused a handle of virtual memory without a handle type at 0x[0-9a-f]*, 2097152 bytes (error 1): " text)" -eq 1 ]
	[ "$(grep -c "^  REFUSED: " text)" -eq 7 ]
	CULIMBO_LOG=warn "$C" run --simulate -- "$P/refused" < /dev/null > out 2> text
	[ ! -s text ]
	# observing, and off
	CULIMBO_MODE=observe CULIMBO_REPORT=always "$C" run --simulate -- "$P/refused" < /dev/null > out 2> text
	[ "$(grep -c "^  REFUSED: " text)" -eq 7 ]
	CULIMBO_DISABLE=1 CULIMBO_REPORT=always "$C" run --simulate -- "$P/refused" < /dev/null > out 2> text
	lacks text "REFUSED"
}

@test "what is asked of the driver after a refusal spoils no capture" {
	CULIMBO_REPORT=always "$C" run --simulate -- "$P/refused" capture < /dev/null > out 2> text
	[ "$(grep -c "^  REFUSED: " text)" -eq 7 ]
}
