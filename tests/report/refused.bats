#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031
# (output and status come from bats, top_builddir from the test environment; each test is a subshell)
# Notes on memory that CUDA refuses to share, and on sharing by descriptors, wherever they are shown.

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

@test "a refusal is a note: kind of memory, size, place, and how it could be shared" {
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
	# a process may have had that option
	has text "Where it ran so, its report says why it got none"
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

@test "the driver calls after a refusal invalidate no capture" {
	CULIMBO_REPORT=always "$C" run --simulate -- "$P/refused" capture < /dev/null > out 2> text
	[ "$(grep -c "^  REFUSED: " text)" -eq 7 ]
}

@test "sharing by descriptors is counted on each side, in ps, blocks, show and the report" {
	export CULIMBO_DIR="$D/limbo"
	"$C" run --simulate -- "$P/descriptors" < in > out 2> err 7>&- &
	program=$!
	echo $program > pids
	for _ in $(seq 600); do
		[ -s out ] && break
		sleep 0.05
	done
	read -r exporter importer < out
	echo "$importer" >> pids
	# the fifth export is not mapped: nothing says how large it is
	[ "$("$C" ps --raw --noheadings --bytes -o PID,FDEXPORTS,FDEXPORTBYTES,FDIMPORTS,FDIMPORTBYTES | sort -n | tr -s ' ' | xargs)" = \
		"$(printf '%s\n' "$exporter 6 12582912 - 0" "$importer - 0 6 8388608" | sort -n | xargs)" ]
	"$C" ps > text
	has text FDEXPORTS
	lacks text FABRIC
	"$C" blocks > text 2>&1
	has text "Besides, by descriptors, which CUDA keeps alive by itself: exported 6 times, 12 MiB, imported 6 times, 8 MiB"
	"$C" blocks --json | jq -e '.blocks == []'
	[ "$("$C" show "$exporter" --json | jq .shared_by_descriptor)" = 6 ]
	"$C" report > text
	lacks text SHARED
	"$C" report --all > text
	has text "SHARED: process $exporter exported virtual memory by descriptor 4 times (10 MiB)"
	has text "SHARED: process $exporter exported virtual memory by descriptor once (2 MiB)"
	has text "SHARED: process $exporter exported a memory pool by descriptor once"
	has text "SHARED: process $importer imported virtual memory by descriptor 4 times (6 MiB)"
	has text "SHARED: process $importer imported virtual memory by descriptor once (2 MiB)"
	has text "SHARED: process $importer imported a memory pool by descriptor once"
	has text "in export_one "
	has text "in import_one "
	has text "  shared by descriptors, which the driver counts: exports: 6, 12 MiB; imports: 0, 0 B"
	"$C" report --json --all > json
	valid json
	jq -e -s --argjson p "$exporter" --argjson c "$importer" '
		all(.[] | select(.class == "by-descriptor"); .finding == false and .fabric == false) and
		any(.[]; .pid == $p and .memory == "virtual" and .call == "cuMemExportToShareableHandle" and .device == 0 and
			.count == 4 and .bytes == 10485760 and any(.stack[]; .function == "export_one")) and
		any(.[]; .pid == $c and .memory == "pool" and .call == "cuMemPoolImportFromShareableHandle" and
			.count == 1 and (has("device") | not)) and
		any(.[]; .type == "summary" and .pid == $c and .fd_imports == 6 and .fd_import_bytes == 8388608 and .findings == 0)' json
	# a process that only makes such memory shares nothing
	CULIMBO_REPORT=always "$C" run --simulate -- "$P/descriptors" nothing < /dev/null > out 2> text
	has text "it shared no GPU memory"
	echo end >&7
	wait "$program"
	[ ! -s err ]
}
