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
