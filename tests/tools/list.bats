#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154,SC2016,SC2030,SC2031
# (output, status and SAID come from elsewhere; each test is a subshell)
# culimbo ps, blocks, show and report: which processes share which blocks, read by another process.
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

# P exports three small blocks and two large ones, frees the first two; C holds the third
scene() {
	start P CULIMBO_GRACE=1h
	start C
	tell P "export 1024 3"
	tell C "open $SAID"
	tell P "export 4194304 2"
	tell P "free 2"
}

@test "no process shares: no line, empty JSON, status 0, and a message on stderr" {
	run --separate-stderr "$C" ps
	exits 0
	[ -z "$output" ]
	[[ $stderr == *"No process shares"*"$CULIMBO_DIR"* ]]
	[ "$("$C" ps --json 2> err | jq -c .)" = '{"processes":[]}' ]
	[ "$("$C" blocks --json | jq -c .)" = '{"blocks":[]}' ]
	[ ! -s err ]
	[ ! -e "$CULIMBO_DIR" ] # looking makes nothing
}

@test "ps: exporter and importer, with their counts" {
	scene
	"$C" ps --json > ps.json
	jq -e '.processes | length == 2' ps.json
	jq -e --argjson p "${PID[P]}" '.processes[] | select(.pid == $p) |
		.state == "alive" and .exported == 3 and .held == 1 and .limbo == 2 and
		.limbobytes == 2048 and .imported == 0 and (.file | test("^exporter-[0-9a-f]{6}$")) and
		(.command | endswith("sharer")) and .age >= 0 and .note == null' ps.json
	jq -e --argjson c "${PID[C]}" '.processes[] | select(.pid == $c) |
		.state == "alive" and .exported == 0 and .limbo == 0 and .imported == 1' ps.json
	run "$C" ps
	exits 0
	[[ ${lines[0]} == *"PID COMMAND"*"LIMBOBYTES"* && ${lines[0]} != *NOTE* ]]
	[[ ${lines[1]} == *"${PID[P]}"*" 2K "* ]] # most in limbo first
	# all of them are taken, and --dir stands for CULIMBO_DIR
	dir=$CULIMBO_DIR
	unset CULIMBO_DIR
	run "$C" ps --dir="$dir" --bytes --noheadings -o PID,LIMBOBYTES,HELDBYTES,EXPORTEDBYTES,HOLDERS
	[[ ${lines[0]} =~ ^\ *${PID[P]}\ +2048\ +1024\ +8389632\ +1$ ]]
	# C keeps what is freed while it has it open, and what its exporter leaves when it dies
	pins() { column PID,PINS ps --dir="$dir" --bytes | sort -n | xargs; }
	pinned() { printf '%s\n' "${PID[P]} 0" "${PID[C]} $1" | sort -n | xargs; }
	[ "$(pins)" = "$(pinned 0)" ]
	tell P "free 1"
	[ "$(pins)" = "$(pinned 1024)" ]
}

@test "blocks: the largest first, with state and holder" {
	scene
	run column STATE,BYTES,HOLDERS,ID blocks
	[ "${#lines[@]}" -eq 5 ]
	[[ ${lines[0]} == "exported 4M 0 "* && ${lines[1]} == "exported 4M 0 "* ]]
	[ "$(printf '%s\n' "${lines[@]:2}" | cut -d' ' -f1-3 | sort)" = \
		$'held 1K 1\nlimbo-grace 1K 0\nlimbo-grace 1K 0' ]
	tell P "free 1"
	"$C" blocks --held --json -o +KIND,PINNED,GENERATION > held.json
	jq -e --argjson p "${PID[P]}" --arg c "${PID[C]} sharer" '.blocks | length == 1 and (.[0] |
		.state == "limbo-held" and .pid == $p and .heldby == $c and .bytes == 1024 and
		.device == 0 and .holders == 1 and .kind == "memory" and .pinned == false and
		(.address | test("^0x")) and .freed >= 0)' held.json
}

@test "blocks: filters by process, device, state" {
	scene
	tell P event
	[ "$(column KIND blocks | sort | uniq -c | xargs)" = "1 event 5 memory" ]
	[ "$(column STATE blocks --state=limbo)" = $'limbo-grace\nlimbo-grace' ]
	# by the exporter's grace, not by that of the one who looks
	[ "$(CULIMBO_GRACE=0 column STATE blocks --state=limbo)" = $'limbo-grace\nlimbo-grace' ]
	[ "$(column STATE blocks --state=limbo-held,held)" = held ]
	[ "$(column STATE blocks --device=0 | wc -l)" -eq 5 ]
	[ -z "$(column STATE blocks --device=1)" ]
	[ "$(column STATE blocks --pid="${PID[P]}" | wc -l)" -eq 6 ]
	[ "$(column STATE blocks --pid="${PID[C]}")" = held ] # what it holds
	[ -z "$(column STATE blocks --pid=1)" ]
	run "$C" blocks --pid=1
	exits 0
	[ "$output" = "There are 6 blocks, and none is what was asked for." ]
	run "$C" blocks --state=limo
	exits 2
	has "unknown state 'limo'; did you mean 'limbo'?"
	run "$C" blocks --state=exportde
	has "did you mean 'exported'?"
	run "$C" blocks --pid=all
	exits 2
	run "$C" blocks -o SIZE,BYTE
	exits 2
	run "$C" blocks -o BYTE
	has "did you mean 'BYTES'?"
}

@test "blocks: sorted by a column, limited in number, and in groups" {
	scene
	start Q
	tell Q "export 1024 7"
	[ "$(column BYTES blocks --bytes --sort=bytes | head -n 2 | xargs)" = "4194304 4194304" ]
	[ "$(column EXPORTS,STATE blocks --sort=STATE | cut -d' ' -f2 | uniq -c | xargs)" = \
		"9 exported 1 held 2 limbo-grace" ]
	# what has none comes last, equal ones as they stood: the largest first
	[ "$(column FREED,BYTES blocks --bytes --sort=FREED | head -n 3 | cut -d' ' -f2 | xargs)" = "1024 1024 4194304" ]
	[ "$(column ID blocks --limit=3 | wc -l)" -eq 3 ]
	[ "$(column ID blocks --limit=0 | wc -l)" -eq 0 ]
	[ "$(column ID blocks --limit=3 --sort=ID)" = "$(column ID blocks | sort | head -n 3)" ]
	run "$C" blocks --group-by=PID,STATE,HELDBY --bytes --raw --noheadings
	exits 0
	[ "$output" = "${PID[P]} exported - 2 8388608
${PID[Q]} exported - 7 7168
${PID[P]} limbo-grace - 2 2048
${PID[P]} held ${PID[C]}\x20sharer 1 1024" ]
	"$C" blocks --group-by=KIND --json --limit=1 |
		jq -e '.groups == [{"kind":"memory","blocks":12,"sum_bytes":8398848,"sum":8398848}]'
	[ "$("$C" blocks --group-by=KIND -o SUM,KIND --raw --noheadings --bytes --pid="${PID[C]}")" = "1024 memory" ]
	run "$C" blocks --sort=BYTE
	exits 2
	has "cannot sort by 'BYTE'; did you mean 'BYTES'?"
	run "$C" blocks --group-by=PID,STAET
	exits 2
	has "cannot group by 'STAET'; did you mean 'STATE'?"
	run "$C" blocks --group-by=PID --sort=PID
	exits 2
	run "$C" blocks --limit=some
	exits 2
}

@test "show: stacks end at main(); --full-stacks and JSON have the rest; ps: times have their distance from UTC" {
	scene
	id=$("$C" blocks --raw --noheadings -o ID --held | head -n 1)
	"$C" show "$id" > text
	cat text
	sed -n '/exported.from/,/exporter/p' text > stack
	grep -q '#0 .*sharer.c:' stack
	run ! grep -E '_start|libc' text
	"$C" show --full-stacks "$id" > full
	grep -q '_start' full
	"$C" show --json "$id" | grep -q '_start'
	[[ $(TZ=Asia/Kolkata column SINCE ps | head -n 1) =~ ^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\+05:30$ ]]
	[ "$(date -d "$(TZ=Asia/Kolkata column SINCE ps | head -n 1)" +%s)" = "$(date -d "$(TZ=UTC column SINCE ps | head -n 1)" +%s)" ]
}

@test "blocks --limit: at least one line" {
	run "$C" blocks --limit=0
	exits 2
	has "--limit: at least 1 line; without it, all"
	run "$C" blocks --limit=1
	exits 0
}

@test "show: a process; a block by its name or by an address in it" {
	scene
	run "$C" show "${PID[P]}"
	exits 0
	has "${PID[C]} (sharer, alive): 1 block, 1 KiB"
	"$C" show "${PID[P]}" --json > p.json
	jq -e --argjson p "${PID[P]}" '.pid == $p and .state == "alive" and .exported == 3 and
		.limbo_bytes == 2048 and (.blocks | length == 5) and (.held_by | length == 1)' p.json
	file=$(column PID,FILE ps | sed -n "s/^${PID[P]} //p")
	[ "$("$C" show "${file#exporter-}" --json | jq .pid)" = "${PID[P]}" ]
	id=$(column ID blocks --held)
	"$C" show --json "$id" > b.json
	jq -e --arg id "$id" --argjson c "${PID[C]}" '.block == $id and .size == 1024 and
		.held_by[0].pid == $c and .held_by[0].state == "alive" and .exports == 1' b.json
	address=$(column ADDRESS blocks --held)
	[ "$("$C" show --json "$(printf '%#x' $((address + 1023)))" | jq -r .block)" = "$id" ]
	[ "$("$C" show --json "$address" | jq -r .block)" = "$id" ]
	# of its importer, and by the address that it has there
	"$C" show --json "${PID[C]}" > c.json
	jq -e --arg id "$id" --argjson p "${PID[P]}" '.imported == 1 and (.imports | length == 1 and
		(.[0] | .id == $id and .exporter == $p and .size == 1024 and .opens == 1))' c.json
	there=$(jq -r '.imports[0].address' c.json)
	[ "$there" != "$address" ]
	[ "$("$C" show --json "$there" | jq -r .block)" = "$id" ]
	tell P "free 1"
	run "$C" show "$id"
	has "limbo-held"
	has "hint            the processes that hold it should close it"
	# where it was exported, freed and opened: by name where the program has its symbols
	line=$(grep -n 'cuIpcGetMemHandle(handle, block' "$top_srcdir/tests/tools/sharer.c" | cut -d: -f1)
	[[ $output =~ \#[0-9]+\ export_many\ [^\ ]*sharer\.c:$line ]]
	freed=$(grep -n 'cuMemFree(block' "$top_srcdir/tests/tools/sharer.c" | cut -d: -f1)
	"$C" show --json "$id" > b.json
	jq -e --argjson line "$line" --argjson freed "$freed" '(.exported_from | any(.function == "export_many" and .line == $line and
		(.file | endswith("sharer.c")) and (.module | endswith("sharer")) and (.build_id | length == 40))) and
		(.freed_from | any(.line == $freed)) and (.held_by[0].opened_from | any(.function == "main")) and
		(.held_by[0] | .opened <= .first_open)' b.json # (both as of one look)
	run "$C" show "${id%:*}:99"
	exits 1
	has "is not in"
	run "$C" show nonsense
	exits 2
	run "$C" show
	exits 2
}

@test "report: with several holders the hint names the live ones, and their number" {
	start P CULIMBO_GRACE=1h
	start A CULIMBO_KEEP_DEAD=1h
	start B
	start C
	tell P "export 4096 1"
	handle=$SAID
	for name in A B C; do tell $name "open $handle"; done
	tell P "free 1"
	for name in D E; do
		start $name
		tell $name "open $handle"
	done
	"$C" report --pid "${PID[P]}" > text
	grep -q "^    and 1 hold of another process$" text
	grep -Eq "HINT: process [0-9]+ and 4 more do not close" text
	for name in D E; do tell $name close; done
	kill -STOP "${PID[P]}" # so that it takes back nothing
	die A
	"$C" report --pid "${PID[P]}" > text
	# (which of the two stands first is theirs)
	grep -Eq "HINT: process (${PID[B]}|${PID[C]}) and 1 more do not close what they opened: call" text
	die C
	"$C" report --pid "${PID[P]}" > text
	grep -q "HINT: process ${PID[B]} does not close what it opened: call" text
	die B
	"$C" report --pid "${PID[P]}" > text
	grep -q "HINT: process ${PID[A]} ended without closing" text
	grep -q "^  HELD: process .* and 2 more mapped 1 block (4 KiB) that process ${PID[P]} has freed$" text
}

@test "report: for imports from one place, how many their exporter has freed, and that it waits only if it lives" {
	start P CULIMBO_GRACE=1h CULIMBO_KEEP_DEAD=1h
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	tell P "export 1048576 1" # the larger one stands first, and is not freed
	tell C "open $SAID"
	"$C" report --pid "${PID[C]}" > text
	grep -q 'of process .*sharer$' text
	tell P "free 1"
	"$C" report --pid "${PID[C]}" > text
	sed -z "s|\n        | |g" text | grep -q "; 1 of those listed freed there .* ago: it waits for this process"
	"$C" report --pid "${PID[C]}" --json | jq -e -s 'any(.[]; .class == "not-closed" and .exporter.freed_ns > 0)'
	tell P "free 1"
	"$C" report --pid "${PID[C]}" > text
	sed -z "s|\n        | |g" text | grep -q "sharer; freed there .* ago: it waits for this process"
	die P
	"$C" report --pid "${PID[C]}" > text
	grep -q "(dead): .*sharer; freed there .* ago$" text
	die C
	"$C" report --pid "${PID[C]}" > text
	grep -q "find what killed it$" text
}

@test "imports of a process without culimbo: their size is unknown, and while they are in use they are no finding" {
	start B CULIMBO_DISABLE=1
	start P
	tell B "export 1024 1"
	tell P "open $SAID"
	run "$C" show "${PID[P]}"
	[[ $output =~ unmanaged\ +unknown\ +-\ +of\ process\ ${PID[B]} ]]
	run "$C" report --pid "${PID[P]}"
	has "has 1 block of a process without culimbo or its file open (unmanaged)"
	run "$C" collect "${PID[B]}"
	exits 1
	has "CULIMBO_DISABLE=1"
}

@test "a dead exporter's blocks: limbo-free, once their grace period is over" {
	start P CULIMBO_GRACE=3s CULIMBO_KEEP_DEAD=1h
	tell P "export 2048 2"
	# both at once, so that nothing of it goes back before
	printf 'free 2\nabort\n' >&"${TO[P]}"
	wait "${PID[P]}" || :
	[ "$(column STATE blocks)" = $'limbo-grace\nlimbo-grace' ]
	"$C" report --pid "${PID[P]}" --json | jq -e -s 'any(.[]; .class == "grace" and .count == 2 and .finding == false)'
	within 20 eval '[ "$(column STATE blocks)" = $'"'limbo-free\\nlimbo-free'"' ]'
	"$C" report --pid "${PID[P]}" --json | jq -e -s 'any(.[]; .class == "limbo" and .count == 2 and
		.bytes == 4096 and .finding == false)'
	run "$C" report --all --pid "${PID[P]}"
	has "WAITED: 2 blocks (4 KiB) freed by process ${PID[P]}, whose end gave them back to the driver"
	has "HINT: nothing to do: its process has ended, and the driver has the memory back"
	run "$C" show "$(column ID blocks | head -n 1)"
	has "limbo-free"
	has "its exporter has ended, and the driver has its memory back"
	# the driver has it back: it is not what waits on this host
	[ "$(column PID,EXPORTED,LIMBO,LIMBOBYTES ps)" = "${PID[P]} 0 0 0B" ]
	run "$C" top
	has "limbo 0 B in 0 blocks"
}

# The header's file id, and the check of it and of what else its stamps have: cl_stamp_check() of
# shim/shm/layout.h
give_id() { # FILE ID
	python3 - "$1" "$2" <<'END'
import struct
import sys

ALL = (1 << 64) - 1


def mix(v):
    v = (v ^ v >> 32) * 0x9E3779B97F4A7C15 & ALL
    v = (v ^ v >> 29) * 0xBF58476D1CE4E5B9 & ALL
    return v ^ v >> 32


with open(sys.argv[1], "r+b") as file:
    number = int(sys.argv[2], 0)
    file.seek(92)
    tag, salt = struct.unpack("<HH", file.read(4))
    file.seek(36)
    file.write(struct.pack("<I", number))
    file.seek(232)
    file.write(struct.pack("<Q", mix((mix(number) + tag + (salt << 32)) & ALL)))
END
}

@test "show: what an importer has open of others, first what it keeps from its owner, and from which line" {
	export CULIMBO_GRACE=1h
	start P
	start C
	tell P "export 65536 1"
	tell C "open $SAID"
	first=$("$C" blocks --raw --noheadings -o ID)
	tell P "export 1048576 1"
	tell C "open $SAID"
	"$C" show "${PID[C]}" > before
	cat before
	run ! grep -E 'pinned|^hint' before
	tell P "free 1"
	"$C" show "${PID[C]}" > text
	cat text
	grep -A1 '^imports$' text | grep -E "^  $first +64 KiB  limbo-held +of process ${PID[P]}, opened .* ago$"
	grep -E '^    at 0x[0-9a-f]+, opened in main .*sharer\.c:[0-9]+$' text
	grep -E '^    at 0x[0-9a-f]+, opened in the same line$' text
	grep -Fx 'pinned bytes    64 KiB' text
	grep -E '^hint +close the pinned one \(64 KiB\): its owner has freed or left it, or died$' text
	"$C" show "${PID[C]}" --json | jq -e --arg id "$first" '.pinned_bytes == 65536 and (.imports | length == 2 and
		(.[0] | .id == $id and .pinned and .state == "limbo-held" and any(.opened_from[]; .function == "main")) and
		(.[1] | (.pinned | not) and .state == "held"))'
}

@test "show: a name of several processes or blocks: all are listed" {
	scene
	# two exporters whose driver gives both the same address
	start Q
	tell Q "export 1024 1"
	id=$(column ID blocks --pid="${PID[Q]}")
	address=$(column ADDRESS blocks --pid="${PID[Q]}")
	others=$(column ADDRESS,ID blocks --pid="${PID[P]}" | sed -n "s/^$address //p")
	if [ -n "$others" ]; then
		run "$C" show "$address"
		exits 1
		has "may be one of 2"
		has "$id"
		has "$others"
	fi
	# and a copy of a file, as of a process of another PID namespace: the same pid
	file=$(column FILE,PID ps | sed -n "s/ ${PID[P]}$//p")
	copy_file "$CULIMBO_DIR/$file" copy
	give_id copy 0xbeef
	copy_file copy "$HOME_OF_ALL/copy"
	tell C "lock $HOME_OF_ALL/copy" # it lives, as far as others can tell
	mv "$HOME_OF_ALL/copy" "$CULIMBO_DIR/exporter-00beef"
	pid=$("$C" ps --json | jq --arg f "$file" '.processes[] | select(.file == $f).pid')
	run "$C" show "$pid"
	exits 1
	has "may be one of 2"
	has "$file"
	has "exporter-00beef"
	run "$C" show "$file"
	exits 0
}

@test "dead exporters and dead importers are marked as dead" {
	scene
	die P
	run column PID,STATE ps
	[ "$output" = "${PID[P]} dead
${PID[C]} alive" ]
	[ "$(column HELDBY blocks --held)" = "${PID[C]}\\x20sharer" ]
	[ "$(column PID,PINS ps --bytes | grep "^${PID[C]} ")" = "${PID[C]} 1024" ]
	# (two small ones in limbo and two large ones went back to the driver with it)
	[ "$(column PID,EXPORTED,HELD,LIMBO ps | grep "^${PID[P]} ")" = "${PID[P]} 1 1 0" ]
	die C
	[ "$("$C" blocks --held -o HELDBY --noheadings)" = "${PID[C]} sharer (ended)" ]
	run "$C" show "$(column ID blocks --held)"
	exits 0
	has "its exporter has ended"
	# by its address too: that some process is not there any more is no fault of the address
	run "$C" show "$(column ADDRESS blocks --held)"
	exits 0
	has "its exporter has ended"
}

@test "show: for an event the hint is to destroy it" {
	start P CULIMBO_GRACE=1h
	start C
	tell P event
	tell C "import $SAID"
	tell P destroy
	run "$C" show "$(column ID blocks --state=limbo-held)"
	has "hint            the processes that hold it should destroy it (cudaEventDestroy), or end"
	run "$C" show "${PID[C]}"
	[[ $output =~ event\ +limbo-held\ +of\ process\ ${PID[P]},\ opened\  ]]
}

@test "an exporter that ended by itself: who still maps its memory" {
	# the last one started: no other process has its stdin
	start C
	start D
	start P
	tell P "export 4096 1"
	handle=$SAID
	tell C "open $handle"
	tell D "open $handle"
	[ "$(column PID,PINS ps --bytes | grep "^${PID[C]} ")" = "${PID[C]} 0" ]
	finish P
	# its file is gone with it
	[ -z "$(column FILE,PID ps | grep " ${PID[P]}$")" ]
	[ "$(column PID,PINS ps --bytes | grep "^${PID[C]} ")" = "${PID[C]} 4096" ]
	# each importer pins it; the device has it once, and nobody knows which that is
	[ "$(column PID,PINS ps --bytes | grep "^${PID[D]} ")" = "${PID[D]} 4096" ]
	[ "$(column GPU,HELD,PINNED ps --gpus --bytes | tail -n 1)" = "- 4096 4096" ]
	run "$C" show --json "${PID[C]}"
	has '"state": "exporter-ended"'
	run "$C" show "${PID[C]}"
	[[ $output =~ exporter-ended\ +of\ process\ ${PID[P]},\ opened\  ]]
	has "close the pinned one (4 KiB): its owner has freed or left it, or died"
	run "$C" metrics
	[[ $output =~ culimbo_pinned_bytes\{pid=\"${PID[C]}\"[^}]*\}\ 4096 ]]
	# not while a process has the exporter's number, since another may have removed its file
	start Q
	tell Q "export 4096 1"
	tell C "open $SAID"
	rm "$CULIMBO_DIR/$(column FILE,PID ps | sed -n "s/ ${PID[Q]}$//p")"
	[ "$(column PID,PINS ps --bytes | grep "^${PID[C]} ")" = "${PID[C]} 4096" ]
	die Q
	[ "$(column PID,PINS ps --bytes | grep "^${PID[C]} ")" = "${PID[C]} 8192" ]
	die C
	[ -z "$(column PID,PINS ps --bytes | grep "^${PID[C]} " | grep -v ' 0$')" ]
}

@test "report: for a killed exporter, the processes that still hold its memory" {
	start P CULIMBO_KEEP_DEAD=1h
	start C CULIMBO_KEEP_DEAD=1h
	tell P "export 4096 1"
	tell C "open $SAID"
	die P
	run "$C" report --pid "${PID[P]}"
	has "HINT: its exporter has ended: the driver keeps the memory until process ${PID[C]} closes it (cudaIpcCloseMemHandle), or ends"
	has "ENDED: process ${PID[P]} has ended while process ${PID[C]} maps 1 block (4 KiB) of it"
	die C
	run "$C" report --pid "${PID[P]}"
	has "ENDED: process ${PID[P]} has ended while process ${PID[C]} mapped 1 block (4 KiB) of it"
	has "HINT: both are dead: nothing is left to free; find why process ${PID[C]} ended without closing"
}

@test "damaged files, and files of other users and other versions: a line each, never a crash" {
	scene
	file=$CULIMBO_DIR/$(column FILE,PID ps | sed -n "s/ ${PID[P]}$//p")
	size=$(stat -c %s "$file")
	take() { copy_file "$file" "$CULIMBO_DIR/exporter-$1"; }
	put() { printf '%b' "$3" | dd of="$CULIMBO_DIR/exporter-$1" bs=1 seek="$2" conv=notrunc status=none; }
	take 000001 && put 000001 0 'XXXX'		# no magic
	take 000002 && put 000002 8 '\x63\x00\x00\x00'	# layout 99
	take 000003 && chmod 644 "$CULIMBO_DIR/exporter-000003"
	: > "$CULIMBO_DIR/exporter-000004"
	ln -s /etc/passwd "$CULIMBO_DIR/exporter-000005"
	mkdir "$CULIMBO_DIR/exporter-000006"
	mkfifo "$CULIMBO_DIR/exporter-000007"
	# its own name, all else noise
	take 000008 && put 000008 36 '\x08\x00\x00'
	dd if=/dev/urandom of="$CULIMBO_DIR/exporter-000008" bs=1 seek=112 count=200 conv=notrunc status=none
	dd if=/dev/urandom of="$CULIMBO_DIR/exporter-000008" bs=4096 seek=1 count=100 conv=notrunc status=none
	truncate -s "$size" "$CULIMBO_DIR/exporter-000009"
	run column FILE,STATE ps
	exits 0
	for line in "000001 damaged" "000002 version" "000003 foreign" "000004 damaged" "000005 damaged" \
		"000006 damaged" "000007 damaged" "000009 damaged"; do
		has "exporter-$line"
	done
	has "exporter-000008 "
	run "$C" ps
	has "it was made by another version of culimbo"
	has "it is not this user's alone"
	[[ ${lines[0]} == *NOTE* ]]
	[ "$(column STATE blocks --pid="${PID[P]}" 2> /dev/null | grep -c .)" -ge 5 ]
	run --separate-stderr "$C" blocks
	exits 0
	[[ $stderr == *"exporter-000002 is left out: it was made by another version"* ]]
	"$C" ps --json | jq -e . > /dev/null
	"$C" blocks --json 2> /dev/null | jq -e . > /dev/null
	for n in 1 2 3 4 5 6 7 9; do
		run "$C" show "exporter-00000$n"
		exits 1
		has "cannot be read"
	done
	run "$C" show exporter-000008
	[ "$status" -lt 2 ]
}

@test "a file that is truncated while it is read causes no crash" {
	scene
	file=$CULIMBO_DIR/$(column FILE,PID ps | sed -n "s/ ${PID[P]}$//p")
	copy_file "$file" copy
	printf '\x01\x00\x00' | dd of=copy bs=1 seek=36 conv=notrunc status=none
	victim=$CULIMBO_DIR/exporter-000001
	(while :; do
		copy_file copy "$victim.t" && mv "$victim.t" "$victim"
		: > "$victim"
	done) 3>&- 2> /dev/null &
	cutter=$!
	for _ in $(seq 60); do
		"$C" ps > /dev/null 2>&1 || { kill "$cutter"; false; }
		"$C" blocks > /dev/null 2>&1 || { kill "$cutter"; false; }
	done
	kill "$cutter"
	wait "$cutter" || :
}

@test "no control byte of a process's name reaches a terminal" {
	cp "$SHARER" "$(printf 'ev\033[31mil\302\233')"
	EXE=./$(printf 'ev\033[31mil\302\233') start P CULIMBO_GRACE=1h
	start C
	tell C 'name a\x1b]0;x\x07\x9b\xc2\x9bz'
	tell P "export 1024 1"
	tell C "open $SAID"
	id=$(column ID blocks --held)
	for command in ps "ps --raw" "ps --json" blocks "blocks --raw" "blocks --json" \
		"show ${PID[P]}" "show ${PID[P]} --json" "show $id" "show $id --json"; do
		# shellcheck disable=SC2086 # its words
		"$C" $command > out 2>&1
		if LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]' out; then
			cat -v out
			false
		fi
		iconv -f UTF-8 -t UTF-8 out > /dev/null
	done
	run "$C" blocks --held -o HELDBY --noheadings
	has "a?]0;x???z"
}

@test "a command line with characters beyond ASCII stays readable" {
	cp "$SHARER" "größe-日本"
	EXE=./größe-日本 start P
	tell P "export 1024 1"
	run "$C" ps --noheadings -o COMMAND
	[ "$output" = ./größe-日本 ]
	[ "$("$C" ps --json | jq -r '.processes[0].command')" = "./größe-日本" ]
	"$C" report --all > text
	grep -q ": ./größe-日本, child of " text
	# --raw has them as a short table has, however long the table is
	raw=$(column COMMAND ps)
	[ "$(printf '%b' "$raw")" = ./größe-日本 ]
	tell P "export 256 2100"
	[ "$(column COMMAND blocks | sort -u)" = "$raw" ]
}

@test "a directory that others may write to: a message with advice; exit 1" {
	mkdir -m 777 open
	run "$C" ps --dir=open
	exits 1
	has "others may write there"
	run "$C" blocks --dir=/etc/passwd
	exits 1
	has "is not a directory"
}

@test "100,000 blocks: ps and blocks under a second" {
	start P CULIMBO_GRACE=1h CULIMBO_WARN_BLOCKS=0
	tell P "export 1024 100000"
	tell P "free 20000"
	for command in ps blocks "blocks --json" "blocks --raw" "show ${PID[P]}"; do
		# processor time: the machine has other things to do
		TIMEFORMAT='%R %U %S'
		# shellcheck disable=SC2086 # its words
		read -r wall user system < <({ time "$C" $command > out; } 2>&1)
		echo "# $command: $(wc -l < out) lines; $wall s, of processor time $user + $system s" >&3
		jq -n -e "$user + $system < 1"
	done
	[ "$(column STATE blocks | sort | uniq -c | xargs)" = "80000 exported 20000 limbo-grace" ]
}

@test "an empty list comes with the reason and advice" {
	for command in ps blocks; do
		run --separate-stderr "$C" $command
		exits 0
		[ -z "$output" ]
		[[ $stderr == *"No process shares"*"culimbo run -- CMD"*"ps --unprotected"* ]]
	done
	run "$C" report
	exits 0
	has "no process shares under culimbo now"
	start P CULIMBO_GRACE=0
	tell P "export 4096 1"
	run "$C" report
	has "no process here holds"
	run "$C" report "${PID[P]}"
	exits 1
	has "of process ${PID[P]}: --pid=${PID[P]}"
	start C
	tell C "open $(tell P "export 4096 1"; echo "$SAID")"
	tell P "free 2"
	tell C close
	within 20 eval '[ -z "$("$C" blocks --raw --noheadings 2> /dev/null)" ]'
	run --separate-stderr "$C" blocks
	exits 0
	[ -z "$output" ]
	[[ $stderr == *"No blocks are shared"* ]]
}

@test "report --error-exitcode: of processes now, and of reports that were written at exit" {
	died() { [ "$("$C" report --json | jq -s '.[-1].findings')" -gt 0 ]; }
	run "$C" report --error-exitcode=42
	exits 0
	start P CULIMBO_GRACE=1h CULIMBO_KEEP_DEAD=1h
	start C
	tell P "export 4096 1"
	tell C "open $SAID"
	run "$C" report --error-exitcode=42
	exits 0 # in use
	die C
	within 10 died
	run "$C" report
	exits 0
	run "$C" report --error-exitcode=42
	exits 42
	run "$C" report --error-exitcode=42 --json
	exits 42
	finish P
	CULIMBO_REPORT_FILE=$PWD/r.txt "$C" run --simulate -- "$top_builddir/tests/report/never_closes"
	CULIMBO_REPORT_FORMAT=jsonl CULIMBO_REPORT_FILE=$PWD/r.json "$C" run --simulate -- "$top_builddir/tests/report/never_closes"
	for file in r.txt.* r.json.*; do
		run "$C" report --error-exitcode=42 "$file"
		exits 42
		run "$C" report "$file"
		exits 0
	done
	echo 'culimbo: SUMMARY pid=1 findings=0' > none
	run "$C" report --error-exitcode=42 none
	exits 0
	run "$C" report --error-exitcode=256
	exits 2
	has "--error-exitcode: '256' is not a status"
}
