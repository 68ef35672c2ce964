#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# Memory that the descriptor service has handed over, when its exporter is dead; and memory that processes share by
# fabric handles, wherever it is shown.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h
}
teardown() {
	share_teardown
}

# of NAME COLUMN: that column of the process NAME in culimbo ps
of() {
	"$C" ps --raw --noheadings --bytes -o "PID,$2" | awk -v pid="${PID[$1]}" '$1 == pid { print $2 }'
}

# handed KIND WORDS EXPORTER: as for cudaMalloc memory (list.bats), C pins what P has left, and each view says so
handed() {
	start P CULIMBO_KEEP_DEAD=1h CULIMBO_SHARE=all
	start C CULIMBO_KEEP_DEAD=1h
	tell P "$1 4194304"
	tell C "open $SAID"
	[ "$(of C PINS)" = 0 ]
	die P
	[ "$(of P STATE)" = dead ]
	[ "$(of P HELD)" = 1 ]
	[ "$(of C PINS)" = 4194304 ]
	[ "$(of C IMPORTEDBYTES)" = 4194304 ]
	[ "$("$C" blocks --json --pid="${PID[P]}" | jq -r '.blocks[] | "\(.state) \(.bytes) \(.holders) \(.heldby)"')" = \
		"held 4194304 1 ${PID[C]} sharer" ]
	"$C" show "${PID[C]}" > text
	run cat text
	has "exporter-died of process ${PID[P]}, opened "
	has "close the pinned one (4 MiB)"
	run "$C" report --pid "${PID[P]}"
	has "ENDED: process ${PID[P]} has ended while process ${PID[C]} maps $2 (4 MiB) of it"
	has "held by process ${PID[C]} (sharer, alive)"
	has "in $3 "
	has "HINT: its exporter has ended: the driver keeps the memory until process ${PID[C]} closes it"
	tell C close
	[ "$(of C PINS)" = 0 ]
	run "$C" report --pid "${PID[P]}"
	[[ $output != *ENDED* ]]
}

@test "virtual memory that a killed exporter has handed over: who maps it, in ps, blocks, show and report" {
	handed virtual "1 block" export_virtual
}

@test "stream-ordered memory that a killed exporter has handed over: who maps it, in ps, blocks, show and report" {
	handed async "1 block of a pool" export_async
}

@test "fabric handles are counted on each side, and named as not covered" {
	start P CULIMBO_REPORT_FILE="$PWD/report.%p" CULIMBO_REPORT=always CULIMBO_LOG=info
	start C CULIMBO_REPORT_FILE="$PWD/report.%p" CULIMBO_REPORT=always CULIMBO_LOG=info
	tell P "fabric 2097152"
	tell C "join $SAID"
	tell P "fabric 2097152"
	[ "$(of P FABRIC)" = 2 ]
	[ "$(of C FABRIC)" = 1 ]
	tell P fabric-pool
	tell C "join-pool $SAID"
	[ "$(of P FABRIC)" = 3 ]
	[ "$(of C FABRIC)" = 2 ]
	[ "$(of P FDEXPORTS)$(of C FDIMPORTS)" = -- ]
	"$C" ps > text
	run cat text
	[[ ${lines[0]} == *FABRIC* ]]
	run "$C" blocks
	has "Besides, by fabric handles, which culimbo does not cover: 5 times."
	[ "$("$C" ps --json | jq "[.processes[] | select(.pid == ${PID[P]}).fabric] == [3]")" = true ]
	run "$C" report --all
	has "SHARED: process ${PID[P]} exported virtual memory by fabric handle, which culimbo does not cover, 2 times (4 MiB)"
	has "SHARED: process ${PID[P]} exported a memory pool by fabric handle, which culimbo does not cover, once"
	has "SHARED: process ${PID[C]} imported virtual memory by fabric handle, which culimbo does not cover, once (2 MiB)"
	has "SHARED: process ${PID[C]} imported a memory pool by fabric handle, which culimbo does not cover, once"
	has "HINT: fabric handles are not covered: free what they share only when every importer is done with it"
	"$C" report --json --all > json
	jq -e -s 'all(.[] | select(.class == "by-descriptor"); .finding == false and .fabric == true)' json
	finish C
	finish P
	for name in P C; do
		[ "$(grep -c "this process shares memory by fabric handles, which culimbo does not cover. It only counts them" "$name.err")" = 1 ]
	done
	run cat "report.${PID[P]}"
	has "shared by fabric handles, which culimbo does not cover: 3"
	run cat "report.${PID[C]}"
	has "shared by fabric handles, which culimbo does not cover: 2"
}

# not_opened KIND WORDS: R, which cannot reach the device of P, does not open what it shares; each view says so
not_opened() {
	export CULIMBO_SIM_DEVICES=2
	start P CUDA_VISIBLE_DEVICES=1 CULIMBO_SHARE=all
	start Q CUDA_VISIBLE_DEVICES=1 CULIMBO_SHARE=all
	start R CUDA_VISIBLE_DEVICES=0 CULIMBO_SIM_REACH=shown CULIMBO_LOG=info
	tell P "$1 4194304"
	handle=$SAID
	# (R has not the option; the log says each once)
	run tell R "$1 2097152"
	has "error 1"
	for _ in 1 2; do
		run tell R "open $handle"
		has "error 101"
	done
	[ "$(of R REFUSED)" = 3 ]
	run "$C" report --pid "${PID[R]}"
	has "REFUSED: $2 of process ${PID[P]} was not opened by its handle: process ${PID[R]} asked 2 times (8 MiB), error 101"
	has "in main "
	has "HINT: this process cannot reach the device that it is on: its container or cgroup may lack it"
	has "refused_by_cuda=3 findings=0"
	"$C" report --json --pid "${PID[R]}" > json
	jq -e -s --arg made "$3" 'any(.[]; .class == "refused" and .call == "cuIpcOpenMemHandle" and .memory == $made and
		.count == 2 and .bytes == 8388608 and .finding == false)' json
	# (one place in the program has one note)
	tell Q "$1 2097152"
	run tell R "open $SAID"
	has "error 101"
	run "$C" report --pid "${PID[R]}"
	has "REFUSED: $2 of another process was not opened by its handle: process ${PID[R]} asked 3 times (10 MiB), error 101"
	run "$C" doctor --simulate
	has "memory was not opened by its handle: process ${PID[R]} asked 3 times"
	finish R
	[ "$(grep -c "info: $2 of process ${PID[P]} was not opened by its handle, 4194304 bytes (error 101): " R.err)" = 1 ]
}

@test "virtual memory that is not opened by its handle leaves a note: whose, how large, where, why" {
	not_opened virtual "virtual memory" virtual
}

@test "stream-ordered memory that is not opened by its handle leaves a note: whose, how large, where, why" {
	not_opened async "stream-ordered memory" pool
}

# (how a GPU's driver numbers a hidden device is not measured; the simulated one says that there is no number)
@test "a fabric handle of a hidden device is imported without a number, and one of a device out of reach is refused" {
	export CULIMBO_SIM_DEVICES=2
	start P CUDA_VISIBLE_DEVICES=1
	start B CUDA_VISIBLE_DEVICES=1,0
	start H CUDA_VISIBLE_DEVICES=0
	start R CUDA_VISIBLE_DEVICES=0 CULIMBO_SIM_REACH=shown
	tell P "fabric 2097152"
	handle=$SAID
	tell B "join $handle"
	tell B device
	[ "$SAID" = 0 ]
	tell H "join $handle"
	tell H device
	[ "$SAID" = -2 ]
	run tell R "join $handle"
	[ "$status" = 1 ]
	has "error 101"
	[ "$(of B FABRIC)$(of H FABRIC)$(of R FABRIC)" = 11 ]
}
