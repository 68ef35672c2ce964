#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2016
# The files of killed processes, and how long they can be read.

load common
eval "$(declare -f setup | sed 's/^setup/common_setup/')"
load share

setup() {
	common_setup
	share_setup
	unset CULIMBO_KEEP_DEAD CULIMBO_KEEP_DEAD_BYTES
}

teardown() {
	share_teardown
}

# of NAME FILTER: of its line in ps
of() {
	"$C" ps --json | jq -e --argjson p "${PID[$1]}" ".processes[] | select(.pid == \$p) | $2" > /dev/null
}

@test "the report of a killed process outlives the next process that shares, by default" {
	start P CULIMBO_GRACE=1h
	tell P "export 4096 2"
	die P
	within 10 of P '.state == "dead"'
	start Q
	tell Q "export 4096 1"
	finish Q
	"$C" report --all --pid "${PID[P]}"
	"$C" gc
	run "$C" report --pid "${PID[P]}"
	exits 1
	# of who does not want it nothing stays
	start R CULIMBO_KEEP_DEAD=0
	tell R "export 4096 1"
	die R
	start S CULIMBO_KEEP_DEAD=0
	within 10 of R '.state == "dead"'
	tell S "export 4096 1"
	run "$C" report --pid "${PID[R]}"
	exits 1
}

@test "ps: a dead importer holds only blocks that its exporter has not taken back yet" {
	start P CULIMBO_GRACE=50ms
	start C
	tell P "export 4096 3"
	tell C "open $SAID"
	of C '.imported == 1'
	kill -STOP "${PID[P]}" # so that it takes back nothing
	die C
	within 10 of C '.state == "dead" and .imported == 1'
	kill -CONT "${PID[P]}"
	tell P "free 3"
	within 10 of P '.held == 0'
	of C '.state == "dead" and .imported == 0'
}

@test "of processes that are killed again and again the last files are kept: 16, or so many bytes" {
	dead() { "$C" report --all --json | jq -e -s --argjson n "$1" '[.[] | select(.type == "process" and .state == "dead")] | length == $n'; }
	for _ in $(seq 20); do
		"$C" run --simulate -- "$top_builddir/tests/report/is_killed" > /dev/null 2>&1 || :
	done
	start P # (who makes a file looks at the others')
	tell P "export 4096 1"
	finish P
	dead 16
	one=$(du --block-size=1 "$CULIMBO_DIR"/exporter-* | sort -n | tail -1 | cut -f1)
	start Q CULIMBO_KEEP_DEAD_BYTES=$((one * 5 / 2))
	tell Q "export 4096 1"
	finish Q
	dead 2
}

@test "ps, blocks, show and report say of a process that called exec just that" {
	printf '#!/bin/sh\nexec env -u LD_PRELOAD sleep 1000\n' > other
	chmod +x other
	start P CULIMBO_GRACE=1h
	start C
	start Q
	tell P "export 4096 1"
	handle=$SAID
	tell C "open $handle"
	tell Q "open $handle"
	echo "exec ./other" >&"${TO[Q]}" # so an importer that has left
	within 10 of Q '.note == "has left by exec: its process runs another program now"'
	of C '.note == null'
	run column HELDBY blocks
	has "${PID[Q]}\x20sharer\x20(called\x20exec)"
	run "$C" show "${PID[P]}"
	has "${PID[Q]} (sharer, called exec): 1 block"
	"$C" report --all --pid "${PID[P]}" --pid "${PID[Q]}" > text || :
	cat text
	output=$(< text)
	has "held by process ${PID[Q]} (sharer, called exec)"
	has "report of process ${PID[Q]} (called exec): "
	has "EXEC: process ${PID[Q]} called exec with 1 block (4 KiB) of process ${PID[P]} open"
	has "HINT: call cudaIpcCloseMemHandle before exec: with its program process ${PID[Q]} lost what it had open; its exporter takes the memory back"
	# an exporter, too
	echo "exec ./other" >&"${TO[P]}"
	within 10 of P '.note == "has left by exec: its process runs another program now"'
	run "$C" report --pid "${PID[P]}"
	has "ENDED: process ${PID[P]} called exec while process ${PID[C]} and 1 more map 1 block (4 KiB) of it"
	has "HINT: its exporter has called exec: the driver keeps the memory until process ${PID[C]} closes it"
	run "$C" report --pid "${PID[C]}"
	has "of process ${PID[P]} (called exec): "
	# when that program has ended, too, nothing tells it from a dead one any more
	die P
	within 10 of P '.state == "dead" and .note == null'
	die C
	within 10 of C '.state == "dead"'
	run "$C" report --pid "${PID[P]}" --pid "${PID[C]}"
	has "both are dead: "
}
