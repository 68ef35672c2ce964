#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# culimbo gc and collect: what they change in other processes' files, and what they keep.
bats_require_minimum_version 1.5.0
load common.bash
eval "common_$(declare -f setup)"
load share.bash

setup() {
	common_setup
	share_setup
}
teardown() {
	# shellcheck disable=SC2046 # a word each
	[ -z "${check-}" ] || kill -KILL "$check" $(pgrep -P "$check") 2> /dev/null || :
	share_teardown
}

file_of() {
	"$C" ps --json | jq -r --argjson p "${PID[$1]}" '.processes[] | select(.pid == $p).file'
}

@test "gc: removes a dead process's file, keeps a live one's, and says what it did" {
	start P
	start Q
	tell P "export 1024 2"
	tell Q "export 1024 1"
	p=$(file_of P) q=$(file_of Q)
	run "$C" gc
	exits 0
	[ "$output" = "Removed 0 files, 0 B; kept, of processes that live: 2." ]
	die P
	run "$C" gc --dry-run
	exits 0
	has "would-remove $p"
	has "Would remove 1 file"
	[ -e "$CULIMBO_DIR/$p" ]
	"$C" gc --json > gc.json
	jq -e --arg p "$p" --arg q "$q" --argjson pid "${PID[P]}" '.files | length == 2 and
		(.[] | select(.file == $p) | .action == "removed" and .pid == $pid and .blocks == 2 and
			.state == "dead" and .disk > 0) and
		any(.file == $q and .action == "kept" and .state == "alive")' gc.json
	[ ! -e "$CULIMBO_DIR/$p" ]
	[ -e "$CULIMBO_DIR/$q" ]
	tell Q "export 1024 1" # it goes on
}

@test "gc: a file that it does not understand is kept, with a message" {
	start P
	tell P "export 1024 1"
	copy_file "$CULIMBO_DIR/$(file_of P)" "$CULIMBO_DIR/exporter-000001"
	printf 'X' | dd of="$CULIMBO_DIR/exporter-000001" bs=1 conv=notrunc status=none
	: > "$CULIMBO_DIR/somebody's"
	run "$C" gc
	exits 0
	has "left   exporter-000001"
	has "it has no culimbo header"
	has "left, not understood: 1 (to be removed by hand, when nothing runs under culimbo)"
	[ -e "$CULIMBO_DIR/exporter-000001" ]
	[ -e "$CULIMBO_DIR/somebody's" ]
}

@test "gc: a file of an earlier boot is removed" {
	start P
	tell P "export 1024 1"
	file=$CULIMBO_DIR/$(file_of P)
	die P
	printf 'another boot id!' | dd of="$file" bs=1 seek=48 conv=notrunc status=none
	[ "$(column STATE,FILE ps)" = "old ${file##*/}" ]
	run "$C" gc
	exits 0
	has "it was made before this machine was last started"
	[ ! -e "$file" ]
}

@test "gc: the file of a process in another PID namespace is removed only after its lock was free for a while" {
	start P
	tell P "export 1024 1"
	file=$CULIMBO_DIR/$(file_of P)
	# (bytes 72 to 79: the inode of its PID namespace)
	printf '\x01\x02\x03\x04' | dd of="$file" bs=1 seek=72 conv=notrunc status=none
	run "$C" ps
	has "in another PID namespace"
	run "$C" gc
	has "kept, of processes that live: 1" # its lock says so
	die P
	[ "$(column STATE ps)" = unsure ]
	run "$C" gc
	exits 0
	has "removed"
	[ ! -e "$file" ]
}

@test "gc removes no used file while processes start and end" {
	start P CULIMBO_GRACE=0
	start C
	(while :; do "$C" gc > /dev/null || echo failed; done) >> gcs 2>&1 3>&- &
	gcs=$!
	for _ in $(seq 20); do
		start Q
		tell Q "export 1024 1"
		tell P "export 2048 1"
		tell C "open $SAID"
		tell P "free 1"
		tell C "close"
		kill -KILL "${PID[Q]}"
		wait "${PID[Q]}" || :
		# two more, at the same file: who comes second has not failed
		"$C" gc > /dev/null 2>> gcs &
		second=$!
		"$C" gc > /dev/null 2>> gcs || echo "failed: $?" >> gcs
		wait "$second" || echo "failed: $?" >> gcs
		rm -f Q.in Q.out
	done
	kill "$gcs"
	wait "$gcs" || :
	[ ! -s gcs ]
	"$C" gc > /dev/null
	[ -e "$CULIMBO_DIR/$(file_of P)" ]
	for file in "$CULIMBO_DIR"/*; do
		file=${file##*/}
		[ "$file" = "$(file_of P)" ] || [ "$file" = "$(file_of C)" ]
	done
}

nothing_waits() {
	[ -z "$(column STATE blocks --state=limbo)" ]
}

@test "collect: blocks that only wait for their grace period are released, held ones stay" {
	start P CULIMBO_GRACE=1h
	start C
	tell P "export 1024 3"
	tell C "open $SAID"
	tell P "export 2048 1" # which is not freed: of what waits it is none
	handle=$SAID
	start D
	tell C "open $handle"
	tell D "open $handle"
	tell P "free 3"
	[ "$(column STATE blocks | sort | uniq -c | xargs)" = "1 held 2 limbo-grace 1 limbo-held" ]
	run "$C" collect "${PID[P]}"
	exits 0
	has "gave back 2 blocks, 2 KiB"
	has "1 block, 1 KiB, still waits"
	has "process ${PID[C]} (sharer) holds 1 of them"
	[[ $output != *"process ${PID[D]} "* ]]
	"$C" collect --json "${PID[P]}" | jq -e --argjson c "${PID[C]}" \
		'.held_by | length == 1 and .[0].pid == $c and .[0].blocks == 1'
	[ "$(column STATE blocks | sort | xargs)" = "held limbo-held" ]
	tell C close
	tell C close
	within 10 nothing_waits
	run "$C" collect "${PID[P]}"
	exits 0
	has "Nothing of process ${PID[P]}"
}

@test "collect --json" {
	start P CULIMBO_GRACE=1h
	tell P "export 4096 5"
	tell P "free 4"
	"$C" collect --json "${PID[P]}" > out
	jq -e --argjson p "${PID[P]}" '.pid == $p and .answered and .collected_blocks == 4 and
		.collected_bytes == 16384 and .limbo_blocks == 0 and .held_by == [] and .took < 2' out
}

@test "collect: a stopped process does not answer: exit 3 within the time limit, with advice" {
	start P CULIMBO_GRACE=1h
	tell P "export 1024 1"
	tell P "free 1"
	kill -STOP "${PID[P]}"
	within 5 grep -q 'State:.*T' "/proc/${PID[P]}/status"
	before=${EPOCHREALTIME/./}
	run "$C" collect --wait=300ms "${PID[P]}"
	exits 3
	[ $((${EPOCHREALTIME/./} - before)) -ge 300000 ]
	has "is stopped: it collects when it goes on (kill -CONT ${PID[P]})"
	kill -CONT "${PID[P]}"
	within 10 eval '[ -z "$(column STATE blocks)" ]'
}

@test "collect: a process that cannot be asked is named, with the reason and advice" {
	run "$C" collect $$
	exits 1
	has "runs without culimbo: start it by \`culimbo run -- CMD\`"
	start P
	tell P "event"
	"$C" run -- sleep 60 3>&- &
	PID[idle]=$!
	within 10 grep -q libculimbo "/proc/$!/maps"
	run "$C" collect "$!"
	exits 1
	has "has exported nothing"
	sh -c : &
	gone=$!
	wait "$gone"
	run "$C" collect "$gone"
	exits 1
	has "there is no process $gone"
	die P
	run "$C" collect "${PID[P]}"
	exits 1
	has "that process has ended"
	run "$C" collect one
	exits 2
	run "$C" collect
	exits 2
	run "$C" collect --wait=soon 1
	exits 2
}

@test "gc and doctor find the folder of a killed check, and keep that of a live one" {
	[ "$(id -u)" -eq 0 ] || skip "only root can be another user, who has no other folders"
	stranger=$((61000 + RANDOM % 4000))
	unset CULIMBO_DIR CULIMBO_SIM_DIR
	as() { setpriv --reuid=$stranger --clear-groups "$@"; }
	as test -x "$C" || skip "another user cannot run what was built here"
	folders() { find /dev/shm /tmp -maxdepth 1 -user $stranger -name 'culimbo-check-*' 2> /dev/null; }
	setpriv --reuid=$stranger --clear-groups "$C" check --allow-no-cuda -- sleep 60 3>&- &
	check=$!
	within 20 eval '[ -n "$(folders)" ] && [ -e "$(folders)/reports" ]'
	left=$(folders)
	run as "$C" gc --json
	jq -e '.files == []' <<< "$output"
	[ -d "$left" ]
	echo 0123456789 > "$left/reports/1"
	within 20 eval 'sleeper=$(pgrep -P $check -x sleep)'
	kill -KILL $check
	wait $check || :
	kill -KILL "$sleeper"
	run as "$C" gc --dry-run
	has "would-remove $left"
	[ -d "$left" ]
	run as "$C" doctor --raw
	has "$left"
	run as "$C" gc --dir="$PWD"
	[ -d "$left" ] # another directory was named
	run as "$C" gc
	exits 0
	has "removed $left"
	has "Removed 1 file"
	[ -z "$(folders)" ]
}

@test "collect of a process that keeps freed blocks of others says so" {
	start P CULIMBO_GRACE=1h
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	run "$C" collect "${PID[C]}"
	exits 0
	[[ $output != *"of others"* ]]
	tell P "free 1"
	run "$C" collect "${PID[C]}"
	exits 0
	has "Nothing of process ${PID[C]} "
	has "  it keeps 1 block of others from the driver, 4 KiB: \`culimbo show ${PID[C]}\` names it"
}

@test "report, show: of a process without a collector its next call gives back what waits" {
	start P CULIMBO_GRACE=1h CULIMBO_COLLECTOR=inline
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	tell P "free 1"
	kill -STOP "${PID[P]}"
	die C
	run "$C" report --pid "${PID[P]}"
	has "its holds are taken back in the exporter's next CUDA call (it has no collector)"
	kill -CONT "${PID[P]}"
	tell P "export 8192 1"
	tell P "free 1"
	run "$C" report --all --pid "${PID[P]}"
	has "HINT: nothing to do: a handle of it may be on its way; the first CUDA call of its program after CULIMBO_GRACE gives it back (it has no collector)"
	run "$C" show "$(column ID blocks --state=limbo-grace | tail -n 1)"
	has "nothing to do; the first CUDA call of its program after CULIMBO_GRACE gives it back (it has no collector)"
	# of one with a collector as before
	start Q CULIMBO_GRACE=1h
	tell Q "export 4096 1"
	tell Q "free 1"
	run "$C" report --all --pid "${PID[Q]}"
	has "HINT: nothing to do: a handle of it may be on its way; CULIMBO_GRACE sets how long it waits"
	# over its grace
	start R CULIMBO_GRACE=300ms CULIMBO_COLLECTOR=inline
	tell R "export 4096 1"
	tell R "free 1"
	within 10 eval '[ "$("$C" blocks --raw --noheadings -o STATE --pid "${PID[R]}")" = limbo-free ]'
	run "$C" report --all --pid "${PID[R]}"
	has "WAITS: 1 block (4 KiB) freed by process ${PID[R]}, whose next CUDA call gives it back"
	has "HINT: nothing to do: the process has no collector (CULIMBO_COLLECTOR=inline, or no thread)"
}
