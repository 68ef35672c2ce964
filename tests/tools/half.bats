#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2030,SC2031,SC2034,SC2016
# Jobs of which only one side is under culimbo: the report, ps and check say so.

load common
bats_require_minimum_version 1.5.0
eval "$(declare -f setup | sed 's/^setup/common_setup/')"
load share

setup() {
	common_setup
	share_setup
}

teardown() {
	share_teardown
}

# bare NAME: a sharer with the driver and without the library, as sudo or env -i leave one
bare() {
	mkfifo "$1.in" "$1.out"
	"$C" run --simulate --no-preload -- "$SHARER" < "$1.in" > "$1.out" 2> "$1.err" 3>&- &
	PID[$1]=$!
	exec {to}> "$1.in" {from}< "$1.out"
	TO[$1]=$to FROM[$1]=$from
}

note() {
	[[ $("$C" ps --json | jq -r --argjson p "$1" '.processes[] | select(.pid == $p) | .note') == *"$2"* ]]
}

@test "ps: exports that no process under culimbo opened, after their grace period" {
	start P CULIMBO_GRACE=100ms
	start C
	tell P "export 4096 2"
	handle=$SAID
	within 10 note "${PID[P]}" "no export was ever opened under culimbo"
	tell C "open $handle"
	note "${PID[P]}" null
	# an importer that closed was there all the same
	tell C close
	note "${PID[P]}" null
}

@test "the report at exit has them as a note, not as a finding" {
	start P CULIMBO_REPORT=always CULIMBO_ERROR_EXITCODE=42
	tell P "export 4096 2"
	finish P
	cat P.err
	grep -q 'none ever opened under culimbo: 2; are the importers preloaded?' P.err
	grep -q ' never_opened=2' P.err
	start C # (who starts last has the ends of the others' pipes)
	start Q CULIMBO_REPORT=always
	tell Q "export 4096 2"
	tell C "open $SAID"
	tell C close
	finish Q
	run ! grep -q "none ever opened" Q.err
}

@test "ps --unprotected lists exactly the processes that use CUDA without the library" {
	start P
	bare B
	tell P "export 4096 1"
	tell B "open $SAID"
	column PID ps --unprotected > pids
	grep -qx "${PID[B]}" pids
	run ! grep -qx "${PID[P]}" pids
	run ! grep -qx $$ pids
	"$C" ps --unprotected --json | jq -e --argjson b "${PID[B]}" '.processes | any(.pid == $b and .age >= 0 and
		(.command | endswith("sharer")))'
}

# looks: what a job begins with.  seen waits until `culimbo check`, its parent, has looked at all processes: that waits once
# after each look, and seldom within one, so two waits would do.  soon COMMAND waits until COMMAND succeeds.  After 30 s both
# end the job.
looks() {
	cat > looks.sh <<-'END'
		waits() {
			while read -r name count; do
				[ "$name" != voluntary_ctxt_switches: ] || echo "$count"
			done < "/proc/$PPID/status"
		}
		soon() {
			tries=0
			until "$@"; do
				tries=$((tries + 1))
				[ "$tries" -lt 3000 ] || exit 1
				sleep 0.01
			done
		}
		has_waited() {
			now=$(waits)
			[ "${now:-0}" -ge "$enough" ]
		}
		seen() {
			enough=$(($(waits) + 5))
			soon has_waited
		}
	END
	cat looks.sh
}

# job: writes job.sh, a shell that plays exporter P (under culimbo) against B, a process below it without.  Its arguments:
# SHARER; what B does with the handle; `seen` if the processes are to live until they have been seen
job() {
	looks > job.sh
	cat >> job.sh <<-'END'
		mkfifo p.in p.out b.in b.out
		"$1" < p.in > p.out & exec 5> p.in 6< p.out
		env -u LD_PRELOAD "$1" < b.in > b.out & exec 7> b.in 8< b.out
		echo 'export 4096 1' >&5; read -r _ handle <&6
		[ -z "$2" ] || { echo "$2 $handle" >&7; read -r said <&8; echo "$said"; }
		$3
		exec 5>&- 7>&-
		wait
	END
}

@test "check: a descendant without the library, and exports that no process opened: a finding" {
	job
	run --separate-stderr "$C" check --simulate -- sh job.sh "$SHARER" open seen
	exits 99
	echo "$stderr"
	[[ $stderr == *"sharer) uses CUDA without culimbo"* ]]
	[[ $stderr == *" findings=1 unprotected=1"* ]]
	run "$C" check --simulate --json --output json -- sh job.sh "$SHARER" open seen
	python3 "$top_srcdir/tests/report/schema.py" "$top_srcdir/doc/report.schema.json" json
	jq -e -s 'any(.[]; .type == "descendant" and .unprotected and .finding and (.command | test("sharer"))) and
		.[-1].unprotected == 1 and .[-1].never_opened == 1' json
	# no suppression hides it, so that making suppressions does not succeed
	run "$C" check --simulate --gen-suppressions --output made -- sh job.sh "$SHARER" open seen
	exits 99
	grep -q '^# no suppression hides this finding: .*uses CUDA without culimbo' made
}

@test "check: an exporter without the library, whose memory a process under it opens: a finding" {
	job
	sed -i 's/^\(env -u LD_PRELOAD \)\?"$1" < p.in/env -u LD_PRELOAD "$1" < p.in/; s/^env -u LD_PRELOAD "$1" < b.in/"$1" < b.in/' job.sh
	run --separate-stderr "$C" check --simulate -- sh job.sh "$SHARER" open seen
	exits 99
	echo "$stderr"
	[[ $stderr == *"sharer) uses CUDA without culimbo"* ]]
	[[ $stderr == *" unprotected=1 unmanaged_imports=1"* ]]
	[[ $stderr == *"1 process opened memory of a process without culimbo"* ]]
	run "$C" check --simulate --json --output json -- sh job.sh "$SHARER" open seen
	python3 "$top_srcdir/tests/report/schema.py" "$top_srcdir/doc/report.schema.json" json
	jq -e -s 'any(.[]; .type == "descendant" and .unprotected and .finding) and .[-1].unmanaged_imports == 1' json
	# an open that the driver refuses opens nothing
	handle=$(printf '0%.0s' {1..128})
	run --separate-stderr "$C" check --simulate -- sh -c 'echo "open $1" | "$2"' sh "$handle" "$SHARER"
	echo "$output $stderr"
	[[ $stderr != *unmanaged_imports* ]]
}

@test "check: an importer without the library that was never seen: said, and a failure with --require-opened" {
	job
	# check stands still while the job shares
	unseen=(sh -c 'kill -STOP $PPID; sh job.sh "$1" open; kill -CONT $PPID' sh "$SHARER")
	run --separate-stderr "$C" check --simulate -- "${unseen[@]}"
	exits 0
	[[ $stderr == *" findings=0 never_opened=1"* ]]
	rm ./*.in ./*.out
	run --separate-stderr "$C" check --simulate --require-opened -- "${unseen[@]}"
	exits 98
	rm ./*.in ./*.out
	run "$C" check --simulate --require-opened --format=github --output text -- "${unseen[@]}"
	grep -q '^::error title=culimbo check::memory was exported that no process under culimbo opened$' text
	# without such exports it changes nothing
	run "$C" check --simulate --require-opened -- "$top_builddir/tests/e2e/demo"
	[[ $output != *never_opened* ]]
	[ "$status" -ne 98 ]
}

@test "check: a process that ended without a report is named where no process opened what was exported" {
	# it runs until it has been seen, and has no driver by then
	{
		looks
		cat <<-'END'
			rm -f hold && mkfifo hold
			echo "export 4096 1" | "$1" > /dev/null
			env -u LD_PRELOAD cat hold & exec 9> hold
			seen
			exec 9>&-
			wait
		END
	} > job.sh
	run "$C" check --simulate --json --output json -- sh job.sh "$SHARER"
	exits 0
	jq -e -s '[.[] | select(.type == "descendant")] | length == 1 and (.[0] | .reported == false and .ended == "exit" and
		.status == 0 and (.finding | not) and (.command | test("cat hold")))' json
	"$C" check --simulate --output text -- sh job.sh "$SHARER"
	grep -E '^culimbo: process [0-9]+ \(cat hold\) ended without a report: it ran without culimbo' text
	# where each export was opened, nobody asks who has none
	sed 's/^echo.*/"$1"/' job.sh > job2.sh
	"$C" check --simulate --output text -- sh job2.sh "$top_builddir/tests/e2e/demo" || :
	run ! grep 'it ran without culimbo' text
}

@test "check: an exporter that could not make its file does not say that nobody opened what it exported" {
	job
	# no process sees whose blocks these are, so nothing is said of who has opened them
	run --separate-stderr env CULIMBO_DIR=/proc/none CULIMBO_LOG=error "$C" check --simulate --require-opened -- \
		"$top_builddir/tests/e2e/demo"
	[ "$status" -ne 98 ]
	[[ $stderr$output != *never_opened* ]]
	start P CULIMBO_REPORT=always CULIMBO_DIR=/proc/none
	tell P "export 4096 2"
	finish P
	run ! grep -E 'none ever opened|never_opened' P.err
}

@test "check: a program that uses CUDA and shares nothing is told so" {
	run --separate-stderr "$C" check --simulate -- sh -c '"$1" < /dev/null' sh "$SHARER"
	exits 0
	[[ $stderr == *"CUDA was used, and nothing was shared between processes: there was nothing to check"* ]]
	run "$C" check --simulate -- sh -c 'echo "export 4096 1" | "$1"' sh "$SHARER"
	[[ $output != *"nothing was shared"* ]]
}

@test "check: what no process opened is no finding, and is said" {
	run --separate-stderr "$C" check --simulate -- sh -c 'echo "export 4096 1" | "$1"' sh "$SHARER"
	exits 0
	[[ $stderr == *" findings=0 never_opened=1"* ]]
	[[ $stderr == *"1 process exported memory that no process under culimbo opened"* ]]
}

@test "check: a descendant that uses CUDA without sharing is named, but is no finding" {
	{
		looks
		cat <<-'END'
			"$2" > out
			mkfifo hold
			env -u LD_PRELOAD "$1" < hold & exec 9> hold
			soon grep -q libcuda "/proc/$!/maps"
			seen
			exec 9>&-
			wait
		END
	} > job.sh
	run --separate-stderr "$C" check --simulate -- sh job.sh "$SHARER" "$top_builddir/tests/e2e/demo"
	echo "$stderr"
	[[ $stderr == *"sharer) uses CUDA without culimbo"* ]]
	[[ $stderr == *" unprotected=1"* ]]
}
