#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2034,SC2004
# A plain run tells a leak once, with both sides; and by whichever side has a report.

setup() {
	C=${CULIMBO:?run me by make check, or set CULIMBO to the command}
	P=${top_builddir:?}/tests/report
	unset LD_PRELOAD LD_LIBRARY_PATH
	cd "$BATS_TEST_TMPDIR" || return 1
	load ../tools/share.bash
	share_setup
}

teardown() {
	share_teardown
}

# says FILE TEXT...: FILE has these titles of findings, in any order, and no other
says() {
	local file=$1
	shift
	sed -nE 's/^  ([A-Z]+: .*)/\1/p' "$file" | sed -E 's/process [0-9]+/PID/g' | sort > titles
	diff titles <(for title; do echo "$title"; done | sort) || {
		cat "$file"
		return 1
	}
}

# begin NAME [VARIABLE=VALUE...]: start, but the sharer has not the ends of the others' pipes, so they end when told
begin() {
	local name=$1 to from
	shift
	mkfifo "$name.in" "$name.out"
	(
		for fd in "${TO[@]}" "${FROM[@]}"; do
			eval "exec $fd>&-"
		done
		exec env "$@" "$C" run --simulate -- "$SHARER" < "$name.in" > "$name.out" 2> "$name.err" 3>&-
	) &
	PID[$name]=$!
	exec {to}> "$name.in" {from}< "$name.out"
	TO[$name]=$to FROM[$name]=$from
}

# ends NAME...: these sharers end, in this order
ends() {
	local name
	for name; do
		finish "$name" || :
		unset "TO[$name]"
		eval "exec ${FROM[$name]}<&-"
		unset "FROM[$name]"
	done
}

# opened [VARIABLE=VALUE...]: importer I has a block of exporter E open, whose own variables are in $of_exporter
opened() {
	# shellcheck disable=SC2086 # none, or several
	begin E $of_exporter
	tell E "export 4096 1"
	begin I "$@"
	tell I "open $SAID"
}

@test "a block that is never closed: who has opened it tells, with the line that freed it" {
	"$C" run --simulate -- "$P/never_closes" 2> text
	says text "LEAK: PID never closed 2 blocks (2 MiB) of PID"
	grep -Eq '^    freed by process [0-9]+ from$' text
	[ "$("$C" report - < text | sed -nE 's/^      #[0-9]+ 0x[0-9a-f]+ in ([^ ]+).*/\1/p' | tr '\n' ' ')" = "open_frame consume main produce main " ]
	[ "$(grep -c '^culimbo: SUMMARY' text)" -eq 1 ]
	"$C" run --simulate --observe -- "$P/never_closes" 2> text
	says text "LEAK: PID never closed 2 blocks (2 MiB) of PID"
	[ "$(grep -c '^    culimbo would have ' text)" -eq 1 ]
	# its exporter's report, when it has one, has the number, and its JSON the group
	CULIMBO_REPORT=always CULIMBO_GRACE=0 "$C" run --simulate -- "$P/never_closes" 2> text
	grep -v '^  WAITED: ' text > rest # (its collector has not come to them)
	says rest "LEAK: PID never closed 2 blocks (2 MiB) of PID"
	grep -Fq "  not closed, which the other process's report has: 2" text
	[ "$(grep -c '^culimbo: SUMMARY.* findings=0$' text)" -eq 1 ]
	CULIMBO_REPORT=always CULIMBO_REPORT_FORMAT=jsonl "$C" run --simulate -- "$P/never_closes" 2> json
	python3 "$top_srcdir/tests/report/schema.py" "$top_srcdir/doc/report.schema.json" json
	jq -e -s 'any(.[]; .class == "reclaimed" and .finding == false and .told_by > 0) and
		any(.[]; .class == "not-closed" and .finding and (.exporter.free_stack | length) > 2)' json
	# check has both sides as before
	"$C" check --simulate -- "$P/never_closes" 2> text || [ $? -eq 99 ]
	says text "LEAK: PID never closed 2 blocks (2 MiB) of PID"
	"$C" run --simulate --names -- "$P/never_closes" 2> text
	says text "LEAK: PID never closed 2 blocks (2 MiB) of PID"
}

@test "an importer without a report, with one that leaves something out, or killed: its exporter tells" {
	for how in CULIMBO_REPORT=off CULIMBO_MIN_AGE=1h CULIMBO_REPORT_FILE=/dev/full; do
		opened $how
		tell E "free 1"
		ends I E
		says I.err
		says E.err "LEAK: PID ended without closing 1 block (4 KiB) of PID"
		rm -f ./*.in ./*.out
	done
	opened
	tell E "free 1"
	die I
	ends E
	says E.err "LEAK: PID ended without closing 1 block (4 KiB) of PID"
}

@test "an exporter that ends first tells, and who has its block open does not again" {
	opened
	tell E "free 1"
	ends E I
	says E.err "LEAK: PID still maps 1 block (4 KiB) that PID has freed"
	says I.err
	rm -f ./*.in ./*.out
	opened CULIMBO_REPORT=always
	ends E I
	says E.err "ENDED: PID ends while PID maps 1 block (4 KiB) of it"
	says I.err
	grep -Fq "  not closed, which the other process's report has: 1" I.err
}

@test "an exporter without a report, with one that leaves something out, or killed: who has its block open tells" {
	for of_exporter in CULIMBO_REPORT=off CULIMBO_MIN_AGE=1h CULIMBO_REPORT_FILE=/dev/full; do
		opened
		tell E "free 1"
		ends E I
		says E.err
		says I.err "LEAK: PID never closed 1 block (4 KiB) of PID"
		rm -f ./*.in ./*.out
	done
	of_exporter=
	opened
	die E
	ends I
	says I.err "LEAK: PID never closed 1 block (4 KiB) of PID"
}

@test "what is suppressed for one side is not told for the other" {
	echo 'leak:/sharer' > known
	of_exporter=CULIMBO_SUPPRESSIONS=$PWD/known
	opened
	tell E "free 1"
	ends E I
	says E.err
	says I.err "LEAK: PID never closed 1 block (4 KiB) of PID"
	rm -f ./*.in ./*.out
	# the culprit's stack decides
	of_exporter=
	opened "CULIMBO_SUPPRESSIONS=$PWD/known"
	tell E "free 1"
	ends I E
	says I.err
	says E.err
}

@test "CULIMBO_ERROR_EXITCODE is the status of both sides" {
	of_exporter=CULIMBO_ERROR_EXITCODE=42
	opened CULIMBO_ERROR_EXITCODE=43
	tell E "free 1"
	status=0
	finish I || status=$?
	[ "$status" -eq 43 ]
	status=0
	finish E || status=$?
	[ "$status" -eq 42 ]
}
