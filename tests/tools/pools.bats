#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# Blocks of memory pools that are shared by pointer, in culimbo ps, blocks, show, report, collect and trace.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
	export CULIMBO_GRACE=1h CULIMBO_GRACE_BYTES=1GiB
}
teardown() {
	share_teardown
}

# P exports a block of a pool, and C imports it; $DATA is what P sent
scene() {
	start C "$@"
	start P "$@" # last: it has no descriptor of the other's, so it can end first
	tell P "pool 4194304"
	DATA=$SAID
	tell C "take $DATA"
}

state() {
	"$C" blocks --json -o +KIND | jq -r '.blocks[] | "\(.kind) \(.state) \(.bytes) \(.holders)"'
}
state_is() {
	[ "$(state)" = "$1" ]
}

@test "blocks, ps and show: a block of a pool in each state, and who holds it" {
	scene
	[ "$(state)" = "pool held 4194304 1" ]
	tell P drop
	[ "$(state)" = "pool limbo-held 4194304 1" ]
	"$C" blocks --held --json -o +KIND > held.json
	jq -e --argjson p "${PID[P]}" --arg c "${PID[C]} sharer" '.blocks[0] | .pid == $p and .heldby == $c and
		.device == 0 and (.address | test("^0x")) and .freed >= 0' held.json
	"$C" ps --json -o +HELDBYTES,IMPORTEDBYTES > ps.json
	jq -e --argjson p "${PID[P]}" '.processes[] | select(.pid == $p) |
		.held == 1 and .heldbytes == 4194304 and .limbo == 1 and .limbobytes == 4194304' ps.json
	jq -e --argjson c "${PID[C]}" '.processes[] | select(.pid == $c) |
		.imported == 1 and .importedbytes == 4194304 and .pins == 4194304' ps.json
	run "$C" show "$(column ID blocks)"
	exits 0
	has "should free what they imported (cudaFree or cudaFreeAsync; cudaIpcCloseMemHandle if a handle opened it)"
	grep -qE "^ +pid +${PID[C]}$" <<< "$output"
	has "pool_take"
	tell C leave
	[ "$(state)" = "pool limbo-grace 4194304 0" ]
	run "$C" collect "${PID[P]}"
	exits 0
	within 5 state_is ""
	[ "$("$C" ps --json | jq "[.processes[] | select(.pid == ${PID[P]}).limbo] == [0]")" = true ]
	finish P
	finish C
}

@test "report: a pool's block is of kind pool, while its exporter runs and when it ends" {
	scene CULIMBO_REPORT_FILE="$PWD/report.%p"
	tell P drop
	"$C" report --json --pid="${PID[P]}" > running.json
	jq -se --argjson c "${PID[C]}" 'any(.[] | .. | objects; .kind? == "pool" and .bytes? == 4194304)' running.json
	finish P
	run cat "report.${PID[P]}"
	has "LEAK: process ${PID[C]} still maps 1 block of a pool (4 MiB) that process ${PID[P]} has freed"
	has "held by process ${PID[C]} (sharer, alive)"
	has "pool_exports=1"
	finish C
}

@test "trace: a pool's block from its export to its return, and who held it" {
	scene CULIMBO_TRACE="$PWD/trace.%p"
	tell P drop
	tell C leave
	"$C" collect "${PID[P]}"
	within 5 state_is ""
	finish P
	finish C
	"$C" trace trace.* -o out.json
	for state in exported "limbo: grace" "limbo: may go"; do
		jq -e --arg s "$state" --argjson p "${PID[P]}" 'any(.traceEvents[]; .ph == "X" and .name == $s and .pid == $p)' out.json
	done
	jq -e --argjson c "${PID[C]}" 'any(.traceEvents[]; .ph == "X" and .cat == "open" and .pid == $c)' out.json
	# a flow joins the export to the import
	jq -e --argjson p "${PID[P]}" --argjson c "${PID[C]}" '[.traceEvents[] | select(.ph == "s" or .ph == "f")] |
		length == 2 and any(.[]; .ph == "s" and .pid == $p) and any(.[]; .ph == "f" and .pid == $c)' out.json
}
